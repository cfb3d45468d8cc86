// Neap's kernels on a card against the operations that they replace, in float64 on the CPU; and twice the same bits.
#include <ATen/ATen.h>
#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bridge/no_autograd.h"
#include "bridge/torch_dtypes.h"
#include "gpu/loaded_cuda.h"
#include "ops/aten_ops.h"
#include "step/model/head.h"

namespace neap::ops {
namespace {

using at::Tensor;

struct Size {
  std::int64_t rows, columns;
};

class OwnKernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
    at::manual_seed(7);
  }
  [[nodiscard]] Tensor random(at::IntArrayRef sizes, double spread = 1) const {
    return at::randn(sizes, at::kDouble).mul_(spread).to(at::Device(at::kCUDA, 0), GetParam());
  }
  // Rounding of a result, and of what a kernel rounds on the way to it: sums of float32 that nearly cancel are off by a part
  // of the largest.
  void near(const Tensor& actual, const Tensor& expected, const char* what) const {
    if (expected.numel() == 0) return;
    const double unit = GetParam() == at::kBFloat16 ? 1.0 / 128 : 8e-6;
    const Tensor e = expected.to(at::kDouble);
    const Tensor off = (actual.to(at::kCPU, at::kDouble) - e).abs();
    const double largest = std::max(1.0, e.abs().max().item<double>());
    const Tensor allowed = e.abs().mul(unit).add(4e-6 * largest);
    EXPECT_TRUE(at::all(off <= allowed).item<bool>())
        << what << " is off by up to " << off.max().item<double>() << " of "
        << e.abs().max().item<double>();
  }
  static Tensor exact(const Tensor& t) { return t.to(at::kCPU, at::kDouble); }

  AtenOps own_{at::Device(at::kCUDA, 0), {.own = {true}}};
  AtenOps reference_{at::kCPU};
  const bridge::NoAutograd no_autograd_{};
};
INSTANTIATE_TEST_SUITE_P(Types, OwnKernels, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& i) { return std::string(c10::toString(i.param)); });

constexpr Size kSizes[] = {{0, 64}, {1, 1}, {1, 8960}, {3, 7}, {37, 129}, {64, 4864}, {70001, 24}};
constexpr spec::Activation kActivations[] = {spec::Activation::kSilu, spec::Activation::kGelu,
                                             spec::Activation::kGeluTanh, spec::Activation::kRelu};

TEST_P(OwnKernels, GatedProduct) {
  for (const Size& size : kSizes) {
    for (const auto kind : kActivations) {
      const Tensor gate = random({size.rows, size.columns}, 2);
      const Tensor up = random({size.rows, size.columns});
      const Tensor expected = reference_.activate(exact(gate), kind).mul(exact(up));
      const Tensor out = at::empty_like(gate);
      own_.gate_into(out, gate, up, kind);
      near(out, expected, "the product");
      const Tensor again = gate.clone();
      own_.gate_into(again, again, up, kind);
      EXPECT_TRUE(at::equal(out, again)) << "in place";
      // Halves of one product.
      const Tensor both = at::cat({gate, up}, 1);
      const Tensor halves = at::empty_like(gate);
      own_.gate_into(halves, both.narrow(1, 0, size.columns),
                     both.narrow(1, size.columns, size.columns), kind);
      EXPECT_TRUE(at::equal(out, halves)) << "of halves";
    }
  }
}

TEST_P(OwnKernels, GatedProductBackward) {
  for (const Size& size : kSizes) {
    for (const auto kind : kActivations) {
      const Tensor gate = random({size.rows, size.columns}, 2);
      const Tensor up = random({size.rows, size.columns});
      const Tensor d = random({size.rows, size.columns});
      const Tensor of_up = exact(d).mul(reference_.activate(exact(gate), kind));
      const Tensor of_gate =
          reference_.activate_backward(exact(d).mul(exact(up)), exact(gate), kind);
      const Tensor d_gate = d.clone();
      const Tensor d_up = at::empty_like(d);
      own_.gate_backward_into(d_gate, d_up, d_gate, gate, up, kind);
      near(d_up, of_up, "of up");
      near(d_gate, of_gate, "of the gate");
      const Tensor both = at::empty({size.rows, 2 * size.columns}, d.options());
      own_.gate_backward_into(both.narrow(1, 0, size.columns),
                              both.narrow(1, size.columns, size.columns), d, gate, up, kind);
      EXPECT_TRUE(at::equal(both, at::cat({d_gate, d_up}, 1))) << "of halves";
    }
  }
}

TEST_P(OwnKernels, Rotation) {
  struct Heads {
    std::int64_t rows, heads, width, half, positions;
  };
  for (const Heads& h : {Heads{0, 2, 64, 32, 1}, Heads{6, 3, 64, 32, 3}, Heads{10, 1, 80, 16, 10},
                         Heads{12, 5, 10, 3, 4}, Heads{70002, 2, 16, 8, 35001}}) {
    // As a part of one product of queries, keys and values.
    const Tensor all = random({h.rows, h.heads + 2, h.width});
    const Tensor x = all.narrow(1, 1, h.heads);
    const Tensor cos = random({h.positions, h.half});
    const Tensor sin = random({h.positions, h.half});
    for (const bool inverse : {false, true}) {
      const Tensor y = own_.rotate(x, cos, sin, inverse);
      near(y, reference_.rotate(exact(x), exact(cos), exact(sin), inverse), "rotated");
      EXPECT_TRUE(at::equal(y, own_.rotate(x, cos, sin, inverse)));
    }
  }
}

// Tokens: few distinct ones, many, one alone, each once.
TEST_P(OwnKernels, RowsAddedToATable) {
  struct Rows {
    std::int64_t count, columns, tokens;
  };
  for (const Rows& r : {Rows{0, 64, 5}, Rows{1, 64, 1}, Rows{300, 72, 300}, Rows{777, 1001, 9},
                        Rows{2000, 1536, 300}, Rows{3000, 2176, 1}, Rows{512, 896, 2000}}) {
    const Tensor rows = random({r.count, r.columns});
    const Tensor indices = at::randint(r.tokens, {r.count}, at::dtype(at::kLong));
    if (r.count == r.tokens) indices.copy_(at::randperm(r.count));
    const Tensor on_card = indices.to(at::kCUDA);
    for (const at::ScalarType type : {at::kFloat, GetParam()}) {
      const Tensor table = random({r.tokens, r.columns}).to(type);
      ASSERT_TRUE(step::OwnKernels{true}.add_rows(bridge::to_step(type),
                                                  bridge::to_step(GetParam()), r.columns));
      const Tensor expected = exact(table);
      expected.index_add_(0, indices, exact(rows));
      const Tensor again = table.clone();
      own_.add_to_rows_(table, on_card, rows);
      own_.add_to_rows_(again, on_card, rows);
      near(table, expected, "the table");
      EXPECT_TRUE(at::equal(table, again));
    }
  }
}

TEST_P(OwnKernels, RmsNormsAndTheirBackward) {
  for (const Size& size :
       {Size{1, 512}, Size{3, 1536}, Size{4, 4096}, Size{1030, 896}, Size{2051, 1536}, Size{7, 64},
        Size{5003, 128}, Size{33, 256}, Size{1, 128}}) {
    ASSERT_TRUE(own_.own_norm_rows(bridge::to_step(GetParam()), size.columns));
    const Tensor x = random({size.rows, size.columns});
    const Tensor dy = random({size.rows, size.columns});
    const Tensor weight = random({size.columns});
    const Tensor added = random({size.rows, size.columns});
    for (const auto kind : {spec::NormKind::kRms, spec::NormKind::kRmsOffset}) {
      const auto forward = reference_.norm(kind, exact(x), exact(weight), {}, 1e-6);
      if (kind == spec::NormKind::kRms) {
        const auto [y, found] = own_.own_rms_norm(x, weight, 1e-6);
        near(y, forward.y, "the norm");
        EXPECT_TRUE(at::allclose(exact(found), forward.rstd, 1e-5));
      }
      const Tensor d_weight = at::zeros({size.columns}, at::kDouble);
      const Tensor dx = reference_.norm_backward(kind, exact(dy), exact(x), {}, forward.rstd,
                                                 exact(weight), d_weight, {});
      const Tensor rstd = forward.rstd.to(at::Device(at::kCUDA, 0), at::kFloat);
      const auto own = [&](const Tensor& to, const Tensor& more) {
        return own_.own_rms_norm_backward(kind, dy, x, rstd, weight, to, more);
      };
      const Tensor sums = at::zeros({size.columns}, x.options().dtype(at::kFloat));
      near(own(sums, added), dx.add(exact(added)), "the gradient");
      EXPECT_LT((exact(sums) - d_weight).abs().max().item<double>(),
                1e-6 * static_cast<double>(size.rows) + 1e-4);
      const Tensor rounded = at::zeros({size.columns}, x.options());
      const Tensor alone = own(rounded, {});
      near(alone, dx, "the gradient alone");
      EXPECT_TRUE(at::equal(rounded, sums.to(GetParam())));
      EXPECT_TRUE(at::equal(alone, own({}, {}))) << "without the weight's";
    }
  }
}

TEST_P(OwnKernels, StepsOfAdamW) {
  const auto wide = [](std::int64_t n) {
    return at::randn({n}, at::dtype(at::kFloat).device(at::kCUDA, 0));
  };
  for (const std::int64_t n : {1, 7, 4096, 100003}) {
    for (const bool copied : {true, false}) {
      step::AdamWTensors<Tensor> t{wide(n), wide(n).mul_(0.1), wide(n).square_(), random({n}), {}};
      if (copied) t.copy = at::empty({n}, t.x.options().dtype(at::kBFloat16));
      const Tensor x = exact(t.x), average = exact(t.average), square = exact(t.square);
      const Tensor g = exact(t.gradient).mul(0.3);
      const spec::OptimizerConfig config{.weight_decay = 0.1};
      at::_fused_adamw_({x}, {g}, {average}, {square}, {}, {at::full({}, 7, at::kFloat)}, 1e-2,
                        config.beta1, config.beta2, config.weight_decay, config.eps, false, false);
      own_.own_adamw_(t, 0.3, 7, 1e-2, config);
      const auto close = [](const Tensor& actual, const Tensor& expected) {
        return at::allclose(exact(actual), expected, 2e-6, 2e-6);
      };
      EXPECT_TRUE(close(t.x, x));
      EXPECT_TRUE(close(t.average, average));
      EXPECT_TRUE(close(t.square, square));
      if (copied) {
        EXPECT_TRUE(at::equal(t.copy, t.x.to(at::kBFloat16)));
      }
    }
  }
}

class Logits : public OwnKernels {
 protected:
  struct Shaping {
    double softcap, divisor;
    bool entropy;
  };
  void compare(const Size& size, const Shaping& by) {
    const Tensor logits = random({size.rows, size.columns}, 5);
    const Tensor targets = at::randint(size.columns, {size.rows}, at::dtype(at::kLong));
    if (size.rows > 1) logits.select(0, 0).select(0, targets[0].item<std::int64_t>()).fill_(40);
    const step::LogitShape shape{by.softcap, by.divisor};
    const Tensor expected_logits = exact(logits);
    if (by.softcap > 0) reference_.softcap_(expected_logits, by.softcap);
    reference_.scale_(expected_logits, 1 / by.divisor);
    const step::LogProbOptions options{.entropy = by.entropy, .accuracy = true};
    const auto expected = step::reduce_logits(reference_, expected_logits.clone(), targets, options,
                                              spec::Axis::kTensor);
    const auto made = [&] { return at::empty({size.rows}, logits.options().dtype(at::kFloat)); };
    step::LogProbs<Tensor> values{made(), by.entropy ? made() : Tensor(), made(), made()};
    const Tensor places = targets.to(at::kCUDA);
    own_.logit_values_into(values.log_probs, values.log_sum, values.entropy, values.right, logits,
                           places, shape);
    wide_near(values.log_probs, expected.log_probs, "log p");
    wide_near(values.log_sum, expected.log_sum, "log sum");
    if (by.entropy) wide_near(values.entropy, expected.entropy, "entropy");
    EXPECT_TRUE(at::equal(values.right.cpu().to(at::kDouble), expected.right));
    compare_gradients(logits, places, shape, expected_logits, expected, values);
  }

 private:
  static void wide_near(const Tensor& actual, const Tensor& expected, const char* what) {
    const double off =
        expected.numel() == 0 ? 0 : (exact(actual) - expected).abs().max().item<double>();
    EXPECT_LT(off, 2e-5) << what;
  }
  void compare_gradients(const Tensor& logits, const Tensor& targets, const step::LogitShape& shape,
                         const Tensor& shaped, const step::LogProbs<Tensor>& expected,
                         const step::LogProbs<Tensor>& values) {
    const auto numbers = [&] { return at::randn({logits.size(0)}, at::kFloat); };
    const Tensor d_log_prob = numbers();
    const Tensor d_entropy = expected.entropy.defined() ? numbers() : Tensor();
    step::Weights<Tensor> weights;
    weights.architecture.logit_softcap = shape.softcap;
    weights.architecture.logits_divisor = 1;
    const auto as_double = [](const Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
    const Tensor gradient = step::logits_gradient(
        reference_, weights, shaped.clone(), targets.cpu(), expected.log_sum, as_double(d_log_prob),
        expected.entropy, as_double(d_entropy), shape.divisor);
    const auto on_card = [](const Tensor& t) { return t.defined() ? t.to(at::kCUDA) : t; };
    const auto own_gradient = [&] {
      Tensor g = logits.clone();
      own_.logit_gradient_(g, targets, values.log_sum, on_card(d_log_prob), values.entropy,
                           on_card(d_entropy), shape);
      return g;
    };
    const Tensor g = own_gradient();
    near(g, gradient, "the gradient");
    EXPECT_TRUE(at::equal(g, own_gradient()));
  }
};
INSTANTIATE_TEST_SUITE_P(Types, Logits, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& i) { return std::string(c10::toString(i.param)); });

TEST_P(Logits, ValuesAndGradients) {
  for (const Size& size : {Size{0, 100}, Size{1, 1}, Size{2, 7}, Size{5, 129}, Size{3, 1000},
                           Size{70001, 8}, Size{9, 50257}, Size{33, 151936}}) {
    compare(size, {0, 1, false});
    compare(size, {0, 0.7, true});
    compare(size, {30, 1.3, false});
    compare(size, {30, 1, true});
  }
}

TEST_P(Logits, OfRowsThatLieApart) {
  const Tensor wide = random({6, 1032}, 3);
  const Tensor part = wide.narrow(1, 8, 1000);
  const Tensor targets = at::arange(6, at::dtype(at::kLong).device(at::kCUDA));
  const auto log_probs_of = [&](const Tensor& logits) {
    Tensor out = at::empty({6}, logits.options().dtype(at::kFloat));
    own_.logit_values_into(out, at::empty_like(out), {}, {}, logits, targets, {});
    return out;
  };
  EXPECT_TRUE(at::equal(log_probs_of(part), log_probs_of(part.contiguous())));
}

}  // namespace
}  // namespace neap::ops
