// Neap's kernels of a decoding step on a card against the operations that they replace.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "bridge/no_autograd.h"
#include "device/cuda/cuda_device.h"
#include "gpu/loaded_cuda.h"
#include "kernels/compiler.h"
#include "kernels/decoding_sizes.h"
#include "ops/aten_ops.h"
#include "step/model/rotation.h"

namespace neap::ops {
namespace {

using at::Tensor;

class OwnDecoding : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
    at::manual_seed(7);
  }
  [[nodiscard]] Tensor random(at::IntArrayRef sizes, double spread = 1) const {
    return at::randn(sizes, at::kDouble).mul_(spread).to(at::Device(at::kCUDA, 0), GetParam());
  }
  static double off(const Tensor& actual, const Tensor& expected) {
    return (actual.to(at::kCPU, at::kDouble) - expected.to(at::kCPU, at::kDouble))
        .abs()
        .max()
        .item<double>();
  }
  // The kernels round each number so often.
  static void near(const Tensor& found, const Tensor& expected, int roundings = 1) {
    const double size = std::max(1.0, expected.abs().max().item<double>());
    EXPECT_LT(off(found, expected), roundings * size / 128);
  }
  static Tensor wide(const Tensor& t) { return t.defined() ? t.to(at::kCPU, at::kDouble) : t; }

  // Norms of heads in place of the kernels': of queries and keys, in float32, rounded once.
  static void add_norms(step::Heads<Tensor>& heads, const Tensor& q_norm, const Tensor& k_norm) {
    heads.q_norm = {q_norm, 1e-6, 1};
    heads.k_norm = {k_norm, 1e-6, 1};
  }
  static Tensor normed(const Tensor& t, const step::RowNorm<Tensor>& by) {
    if (!by.weight.defined()) return t;
    const Tensor x = t.to(at::kDouble);
    const Tensor scale = x.square().mean(-1, /*keepdim=*/true).add(by.eps).rsqrt();
    return (x * scale * by.weight.to(at::kDouble).add(by.offset)).to(t.scalar_type());
  }

  static step::OwnKernels own_kernels() {
    if (!has_cuda()) return {true};
    const auto card = value_or_throw(device::make_cuda_device(0));
    return {true, card->info().architecture == kernels::kWarpGroupArchitecture,
            card->info().multiprocessors};
  }
  AtenOps own_{at::Device(at::kCUDA, 0), {.own = own_kernels()}};
  AtenOps host_{at::kCPU};
  const bridge::NoAutograd no_autograd_{};
};
INSTANTIATE_TEST_SUITE_P(Types, OwnDecoding, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& i) { return std::string(c10::toString(i.param)); });

// The same results come from tables of cosines, a rotation of queries and of keys, and a copy into each cache.
TEST_P(OwnDecoding, HeadsAreTurnedAndStored) {
  struct Case {
    std::int64_t rows, heads, groups, width, turned;
    bool joined, biased;
    double factor;
    bool normed = false;
  };
  for (const Case& c :
       {Case{8, 14, 2, 64, 64, false, false, 1}, Case{64, 32, 8, 128, 128, true, false, 1},
        Case{3, 8, 1, 256, 256, true, true, 1}, Case{5, 4, 4, 80, 32, false, true, 1.25},
        Case{1, 32, 32, 64, 0, true, true, 1}, Case{2, 3, 3, 10, 6, false, false, 1},
        Case{0, 2, 2, 64, 64, false, false, 1}, Case{8, 32, 8, 128, 128, true, false, 1, true},
        Case{3, 4, 1, 256, 256, true, true, 1, true}, Case{5, 4, 4, 80, 32, false, true, 1, true},
        Case{2, 3, 3, 10, 0, false, false, 1, true}}) {
    SCOPED_TRACE(c.width);
    const std::int64_t tokens = 4000;
    const auto heads_of = [&]() -> step::Heads<Tensor> {
      if (!c.joined)
        return {random({c.rows, c.heads, c.width}), random({c.rows, c.groups, c.width}),
                random({c.rows, c.groups, c.width})};
      const Tensor all = random({c.rows, c.heads + 2 * c.groups, c.width});
      return {all.narrow(1, 0, c.heads), all.narrow(1, c.heads, c.groups),
              all.narrow(1, c.heads + c.groups, c.groups)};
    };
    step::Heads<Tensor> heads = heads_of();
    if (c.biased) {
      heads.q_bias = random({c.heads * c.width}, 3);
      heads.k_bias = random({c.groups * c.width}, 3);
      heads.v_bias = random({c.groups * c.width}, 3);
    }
    if (c.normed) add_norms(heads, random({c.width}), random({c.width}));
    step::Rotations<Tensor> rotations;
    if (c.turned > 0) {
      rotations.all.frequencies =
          at::pow(10000, at::arange(0, c.turned, 2, at::kFloat).div(-c.turned)).to(at::kCUDA);
      rotations.all.attention_factor = c.factor;
    }
    const Tensor positions = at::randint(tokens, {c.rows}, at::kLong).to(at::kCUDA);
    const auto cache = [&] {
      return at::zeros({c.rows + 1, c.groups, tokens, c.width}, heads.q.options());
    };
    const Tensor keys = cache(), values = cache();
    const Tensor other_keys = keys.clone(), other_values = values.clone();
    const Tensor q = own_.append_(keys, values, positions, heads, rotations.all);

    const auto biased = [](const Tensor& t, const Tensor& bias) {
      return bias.defined() ? t.add(bias.view({1, t.size(1), t.size(2)})) : t;
    };
    const step::Rows<Tensor> rows =
        step::make_rows(own_, own_.dtype(q), {c.rows, 1}, positions, rotations);
    const auto turned = [&](const Tensor& t) {
      return c.turned > 0 ? own_.rotate(t, rows.cos, rows.sin, false) : t;
    };
    own_.write_token_(other_keys, positions,
                      turned(normed(biased(heads.k, heads.k_bias), heads.k_norm)));
    own_.write_token_(other_values, positions, biased(heads.v, heads.v_bias));
    EXPECT_TRUE(q.is_contiguous());
    // Sums of two products may be rounded in another order, and norms to a neighbour.
    const double unit = GetParam() == at::kBFloat16 ? 1.0 / 128 : 2e-6;
    const double least = !c.normed ? 4e-6 : GetParam() == at::kBFloat16 ? 1.0 / 32 : 4e-5;
    EXPECT_TRUE(
        at::allclose(q, turned(normed(biased(heads.q, heads.q_bias), heads.q_norm)), unit, least));
    EXPECT_TRUE(at::allclose(keys, other_keys, unit, least));
    EXPECT_TRUE(at::equal(values, other_values));
  }
}

// The same come from append_() and FlashAttention.
TEST_P(OwnDecoding, HeadsAreStoredAndAttend) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "only bfloat16";
  struct Case {
    std::int64_t rows, heads, groups, width, turned, tokens, longest, window;
    bool joined, biased, normed = false;
  };
  for (const Case& c : {Case{8, 14, 2, 64, 64, 256, 150, 0, true, true},
                        Case{8, 12, 2, 128, 128, 600, 590, 0, true, false, true},
                        Case{3, 4, 1, 256, 256, 1024, 1000, 300, true, true, true},
                        Case{8, 16, 8, 128, 128, 160, 150, 0, true, false, true},
                        Case{5, 4, 4, 80, 32, 300, 299, 0, false, true, true},
                        Case{8, 12, 2, 128, 128, 600, 590, 0, true, false},
                        Case{64, 32, 32, 64, 0, 160, 150, 0, false, true},
                        Case{64, 14, 2, 64, 64, 160, 150, 0, true, true},
                        Case{64, 12, 2, 128, 128, 160, 150, 60, true, false, true},
                        Case{64, 32, 8, 128, 128, 300, 290, 0, true, false},
                        Case{32, 16, 8, 256, 128, 80, 70, 0, false, true, true},
                        Case{64, 8, 8, 64, 64, 700, 690, 100, false, false},
                        Case{3, 8, 2, 256, 256, 1024, 1000, 0, true, true},
                        Case{3, 8, 2, 256, 128, 1024, 1000, 300, true, true},
                        Case{5, 4, 4, 80, 32, 300, 299, 0, false, true},
                        Case{1, 32, 32, 128, 128, 5000, 4999, 0, true, false},
                        Case{2, 3, 3, 24, 16, 40, 0, 0, false, false},
                        Case{8, 32, 8, 128, 128, 200, 1, 0, true, false},
                        Case{0, 2, 2, 64, 64, 64, 5, 0, false, false}}) {
    SCOPED_TRACE(::testing::Message()
                 << c.rows << " " << c.heads << " " << c.width << " " << c.window);
    step::Heads<Tensor> heads{random({c.rows, c.heads, c.width}),
                              random({c.rows, c.groups, c.width}),
                              random({c.rows, c.groups, c.width})};
    if (c.joined) {
      const Tensor all = random({c.rows, c.heads + 2 * c.groups, c.width});
      heads = {all.narrow(1, 0, c.heads), all.narrow(1, c.heads, c.groups),
               all.narrow(1, c.heads + c.groups, c.groups)};
    }
    if (c.biased) {
      heads.q_bias = random({c.heads * c.width}, 3);
      heads.k_bias = random({c.groups * c.width}, 3);
      heads.v_bias = random({c.groups * c.width}, 3);
    }
    if (c.normed) add_norms(heads, random({c.width}), random({c.width}));
    step::Rotation<Tensor> rotation;
    if (c.turned > 0)
      rotation.frequencies =
          at::pow(10000, at::arange(0, c.turned, 2, at::kFloat).div(-c.turned)).to(at::kCUDA);
    Tensor positions = at::randint(c.longest + 1, {c.rows}, at::kLong);
    if (c.rows > 0) positions[0] = c.longest;
    positions = positions.to(at::kCUDA);
    const Tensor keys = random({c.rows + 1, c.groups, c.tokens, c.width});
    const Tensor values = random({c.rows + 1, c.groups, c.tokens, c.width});
    const Tensor other_keys = keys.clone(), other_values = values.clone();
    step::ScoreOptions options;
    options.scale = 1 / std::sqrt(static_cast<double>(c.width));
    options.window = c.window;
    const step::KeyLimit limit = step::key_limit(c.longest + 1, c.tokens, /*flash=*/true);
    ASSERT_TRUE(own_.attends_itself(step::Dtype::kBfloat16,
                                    {c.rows, c.heads, c.groups, c.width, limit.rounded}, options));
    const Tensor found =
        own_.append_and_attend_(keys, values, positions, heads, rotation, limit, options);
    const Tensor q = own_.append_(other_keys, other_values, positions, heads, rotation);
    EXPECT_TRUE(at::equal(keys, other_keys));
    EXPECT_TRUE(at::equal(values, other_values));
    if (c.rows == 0) continue;
    const auto seen = own_.decode_keys(positions, keys, c.heads, limit.rounded, options);
    const Tensor flash = own_.decode_attention(q, keys, values, seen, options);

    // In float64, from the same queries.
    const Tensor places = at::arange(c.tokens).unsqueeze(0);
    const Tensor last = positions.to(at::kCPU).unsqueeze(1);
    Tensor hidden = places > last;
    if (c.window > 0) hidden = hidden.logical_or(places <= last - c.window);
    const std::int64_t group = c.heads / c.groups;
    const auto of_heads = [&](const Tensor& cache) {
      return wide(cache.narrow(0, 0, c.rows)).repeat_interleave(group, 1);
    };
    Tensor scores = of_heads(keys).matmul(wide(q).unsqueeze(3)).squeeze(3) * options.scale;
    scores = scores.masked_fill(hidden.unsqueeze(1), -1e300).softmax(2);
    const Tensor exact = scores.unsqueeze(2).matmul(of_heads(values)).view({c.rows, -1});
    const double size = std::max(1.0, exact.abs().max().item<double>());
    EXPECT_LT(off(found, exact), size / 128) << "FlashAttention: " << off(flash, exact);
    EXPECT_TRUE(at::equal(
        found, own_.append_and_attend_(keys, values, positions, heads, rotation, limit, options)));
    // The first rows alone have the same bits, with one head a block.
    const auto first = [](const Tensor& t) { return t.narrow(0, 0, 4); };
    if (step::attend_heads(c.rows, c.heads, c.groups) == 1) continue;
    const step::Heads<Tensor> of_few{first(heads.q), first(heads.k), first(heads.v), heads.q_bias,
                                     heads.k_bias,   heads.v_bias,   heads.q_norm,   heads.k_norm};
    const Tensor few = own_.append_and_attend_(first(keys), first(values), first(positions), of_few,
                                               rotation, limit, options);
    const bool divided = step::attend_shares(4 * c.heads, limit.rounded) > 1;
    EXPECT_TRUE(divided || at::equal(first(found), few));
  }
}

TEST_P(OwnDecoding, ProductsOfFewRows) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "only bfloat16";
  const auto exact = [](const Tensor& x, const Tensor& w) {
    return x.to(at::kDouble).mm(w.to(at::kDouble).t());
  };
  for (const std::int64_t rows : {1, 3, 7, 8, 9, 16, 17, 33, 49, 64}) {
    if (rows > kernels::decoding::kTile && !own_kernels().warp_groups) continue;
    for (const std::int64_t in : {8, 40, 896, 1544, 4864, 14336}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << in);
      const double spread = 1 / std::sqrt(static_cast<double>(in));
      const Tensor x = random({rows, in + 8}).narrow(1, 0, in);
      const Tensor q = random({48, in}, spread), k = random({8, in}, spread);
      const Tensor v = random({16, in}, spread);
      const Tensor q_bias = random({48}), v_bias = random({16});
      const Tensor all = own_.few_rows_products(x, {{q, k, v}, {q_bias, {}, v_bias}});
      near(all, at::cat({exact(x, q) + q_bias, exact(x, k), exact(x, v) + v_bias}, 1));
      near(own_.few_rows_products(x, {{q}, {}}), exact(x, q));
      if (in <= 1544 && (rows <= 8 || in == 896)) {
        const Tensor many = random({4096, in}, spread), more = random({4096, in}, spread);
        const Tensor many_bias = random({4096});
        near(own_.few_rows_products(x, {{many, more, v}, {many_bias, {}, v_bias}}),
             at::cat({exact(x, many) + many_bias, exact(x, more), exact(x, v) + v_bias}, 1));
      }
      // Rows do not depend on each other, where the same kernel computes them.
      const std::int64_t fewer =
          rows <= kernels::decoding::kTile ? std::min<std::int64_t>(rows, 3) : 9;
      EXPECT_TRUE(at::equal(
          all.narrow(0, 0, fewer),
          own_.few_rows_products(x.narrow(0, 0, fewer), {{q, k, v}, {q_bias, {}, v_bias}})));
      const Tensor sum = random({rows, 48});
      const Tensor expected = exact(x, q) + sum;
      own_.add_few_rows_(sum, x, q, {});
      near(sum, expected);
      const Tensor up = random({48, in}, spread);
      for (const auto kind : {spec::Activation::kSilu, spec::Activation::kGelu,
                              spec::Activation::kGeluTanh, spec::Activation::kRelu}) {
        const auto activated = [&](const Tensor& t) {
          return host_.activate(t.to(at::kCPU), kind).to(at::kCUDA);
        };
        near(own_.few_rows_gated(x, {{q, up}, {}}, kind), activated(exact(x, q)) * exact(x, up), 3);
        near(own_.few_rows_activated(x, {{q}, {q_bias}}, kind), activated(exact(x, q) + q_bias), 2);
      }
    }
  }
}

TEST_P(OwnDecoding, ProductsOfNormalizedRows) {
  if (GetParam() != at::kBFloat16 || !own_kernels().warp_groups)
    GTEST_SKIP() << "only bfloat16 on Hopper";
  const auto compare = [&](spec::NormKind kind, std::int64_t rows, std::int64_t in) {
    const bool layer = kind == spec::NormKind::kLayerNorm;
    const double spread = 1 / std::sqrt(static_cast<double>(in));
    const Tensor x = random({rows, in + 8}, 3).add_(layer ? 5 : 0).narrow(1, 0, in);
    const step::RowsNorm<Tensor> norm{kind, random({in}), layer ? random({in}) : Tensor(), 1e-5};
    const Tensor normed = host_.norm(kind, wide(x), wide(norm.weight), wide(norm.bias), 1e-5)
                              .y.to(at::kBFloat16)
                              .to(at::kDouble);
    // A block has one tile of the matrices, or several, and with 2048 columns one at once, or two.
    for (const std::int64_t out : {40, 8192}) {
      const Tensor w = random({out, in}, spread), v = random({out, in}, spread);
      const Tensor bias = random({out});
      const Tensor first = normed.mm(wide(w).t()), second = normed.mm(wide(v).t());
      const Tensor both = own_.few_rows_products(x, {{w, v}, {bias, {}}, norm});
      near(both, at::cat({first + wide(bias), second}, 1), 2);
      EXPECT_TRUE(at::equal(both.narrow(0, 0, 1),
                            own_.few_rows_products(x.narrow(0, 0, 1), {{w, v}, {bias, {}}, norm})));
      near(own_.few_rows_activated(x, {{w}, {bias}, norm}, spec::Activation::kGelu),
           host_.activate(first + wide(bias), spec::Activation::kGelu), 3);
      near(own_.few_rows_gated(x, {{w, v}, {}, norm}, spec::Activation::kSilu),
           host_.activate(first, spec::Activation::kSilu) * second, 4);
    }
    const Tensor w = random({64, in}, spread), bias = random({64}), sum = random({rows, 64});
    const Tensor expected = wide(x).mm(wide(w).t()) + wide(sum) + wide(bias);
    own_.add_few_rows_(sum, x, w, bias);
    near(sum, expected, 1);
  };
  for (const std::int64_t rows : {1, 3, 8})
    for (const std::int64_t in : {8, 896, 1024, 1536, 2048})
      for (const auto kind :
           {spec::NormKind::kRms, spec::NormKind::kRmsOffset, spec::NormKind::kLayerNorm}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << in);
        compare(kind, rows, in);
      }
}

// Matrices of more than 9 Mi elements, whose tiles the last block does not fill.
TEST_P(OwnDecoding, ProductsWithLargeMatrices) {
  if (GetParam() != at::kBFloat16 || !own_kernels().warp_groups)
    GTEST_SKIP() << "only bfloat16 on Hopper";
  constexpr std::int64_t kIn = 1544, kOut = 6200, kHalf = 3112;
  const double spread = 1 / std::sqrt(static_cast<double>(kIn));
  const Tensor w = random({kOut, kIn}, spread), bias = random({kOut});
  const Tensor gate = random({kHalf, kIn}, spread), up = random({kHalf, kIn}, spread);
  const auto exact = [](const Tensor& x, const Tensor& by) {
    return x.to(at::kDouble).mm(by.to(at::kDouble).t());
  };
  const auto activated = [&](const Tensor& t, spec::Activation kind) {
    return host_.activate(t.to(at::kCPU), kind).to(at::kCUDA);
  };
  for (const std::int64_t rows : {5, 8, 16, 32, 48, 64}) {
    SCOPED_TRACE(rows);
    ASSERT_EQ(own_kernels().row_product(step::Dtype::kBfloat16, rows, kIn, kOut),
              step::RowProduct::kSomeRows);
    const Tensor x = random({rows, kIn});
    near(own_.few_rows_products(x, {{w}, {bias}}), exact(x, w) + bias, 1);
    const Tensor sum = random({rows, kOut});
    const Tensor expected = exact(x, w) + sum;
    own_.add_few_rows_(sum, x, w, {});
    near(sum, expected, 1);
    near(own_.few_rows_activated(x, {{w}, {bias}}, spec::Activation::kRelu),
         activated(exact(x, w) + bias, spec::Activation::kRelu), 2);
    const Tensor gated = own_.few_rows_gated(x, {{gate, up}, {}}, spec::Activation::kSilu);
    near(gated, activated(exact(x, gate), spec::Activation::kSilu) * exact(x, up), 3);
    EXPECT_TRUE(at::equal(
        gated.narrow(0, 0, 5),
        own_.few_rows_gated(x.narrow(0, 0, 5), {{gate, up}, {}}, spec::Activation::kSilu)));
  }
  const Tensor x = random({8, kIn});
  EXPECT_THROW((void)own_.few_rows_products(x.narrow(1, 0, kIn - 8), {{w}, {}}), Error);
  EXPECT_THROW((void)own_.few_rows_products(x, {{w}, {bias.to(at::kFloat)}}), Error);
  EXPECT_THROW((void)own_.few_rows_products(random({kIn, 8}).t(), {{w}, {}}), Error);
}

TEST_P(OwnDecoding, NormsAndTheRowAddedBehind) {
  const double unit = GetParam() == at::kBFloat16 ? 1.0 / 128 : 4e-6;
  for (const std::int64_t columns : {1, 7, 64, 896, 2048, 5120, 20000}) {
    for (const auto kind :
         {spec::NormKind::kRms, spec::NormKind::kRmsOffset, spec::NormKind::kLayerNorm}) {
      for (const bool adds : {true, false}) {
        for (const std::int64_t rows : {1, 33}) {
          SCOPED_TRACE(columns);
          const bool layer = kind == spec::NormKind::kLayerNorm;
          const Tensor x = random({rows, columns}, 3).add_(layer ? 5 : 0);
          const Tensor weight = random({columns});
          const Tensor bias = layer ? random({columns}) : Tensor();
          const Tensor added = adds ? random({columns}) : Tensor();
          const Tensor expected = host_.norm(kind, wide(x), wide(weight), wide(bias), 1e-5).y;
          const Tensor sum = adds ? x.add(added) : x.clone();
          const Tensor y = own_.norm_and_add_(kind, x, weight, bias, 1e-5, added);
          EXPECT_LT(off(y, expected), unit * std::max(1.0, expected.abs().max().item<double>()));
          EXPECT_TRUE(at::equal(x, sum));
        }
      }
    }
  }
}

TEST_P(OwnDecoding, ProductsOfStackedMatrices) {
  for (const std::int64_t rows : {1, 8, 33}) {
    const Tensor x = random({rows, 96});
    // Biases lie between the matrices of a unit.
    const Tensor flat = random({std::int64_t{3} * (64 * 96 + 64)});
    const Tensor w = flat.as_strided({3, 64, 96}, {64 * 96 + 64, 96, 1});
    const Tensor all = own_.products(x, w);
    for (std::int64_t i = 0; i < 3; ++i) {
      const Tensor expected = x.to(at::kDouble).mm(w[i].to(at::kDouble).t());
      EXPECT_LT(off(all[i], expected), GetParam() == at::kBFloat16 ? 0.25 : 2e-2);
    }
  }
}

}  // namespace
}  // namespace neap::ops
