// Products in fp8 on the CPU: conversions, products, gradients of whole models, and training.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "bridge/no_autograd.h"
#include "step/operations/linear.h"
#include "tiny_model.h"
#include "unit/ops/fp8_copies.h"
#include "unit/ops/passes.h"

namespace neap::ops {
namespace {

using at::Tensor;
using step::Fp8Format;
using step::Fp8Sides;
using Copies = step::Fp8Copies<Tensor>;

const bridge::KernelChoice kFp8{.fp8 = true};

Tensor random(at::IntArrayRef sizes, double spread = 1) {
  return at::randn(sizes, at::kDouble).mul_(spread).to(at::kBFloat16);
}
Tensor exact(const Tensor& values, const Tensor& scale) {
  return values.to(at::kDouble).mul_(scale.item<double>());
}
double distance(const Tensor& a, const Tensor& b) {
  const Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

class Fp8 : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(11); }
  const bridge::NoAutograd no_autograd_{};
  AtenOps ops_{at::kCPU, kFp8};
};

TEST_F(Fp8, RoundsOnceWithAPowerOfTwo) {
  struct Range {
    Fp8Format format;
    double largest, rounding;  // half of the last digit
  };
  for (const Range& r :
       {Range{Fp8Format::kE4m3, 448, 1.0 / 16}, Range{Fp8Format::kE5m2, 57344, 1.0 / 8}})
    for (const double spread : {1e-30, 3e-4, 1.0, 7.0, 1e30}) {
      const Tensor x = random({37, 48}, spread);
      Copies copies;
      ops_.to_fp8(copies, x, r.format, Fp8Sides::kBoth);
      int exponent = 0;
      EXPECT_EQ(std::frexp(copies.scale.item<float>(), &exponent), 0.5F);
      const double most = copies.rows.to(at::kDouble).abs().max().item<double>();
      EXPECT_LE(most, r.largest);
      EXPECT_GE(most, r.largest / 2.3);  // twice as large would not fit
      const Tensor off = (exact(copies.rows, copies.scale) - x.to(at::kDouble)).abs();
      const double least = 1e-5 * x.abs().max().item<double>();  // of few digits
      EXPECT_TRUE(at::all(off <= x.to(at::kDouble).abs().mul(r.rounding).add(least)).item<bool>());
      const Tensor across = copies.columns.to(at::kDouble);
      EXPECT_TRUE(at::equal(across.narrow(1, 0, 37), copies.rows.to(at::kDouble).t()));
      EXPECT_EQ(across.size(1), 48);
      EXPECT_EQ(across.narrow(1, 37, 11).abs().max().item<double>(), 0);
    }
}

TEST_F(Fp8, AScaleIsMadeOnce) {
  testing::expect_one_scale(ops_, random({16, 32}), Fp8Format::kE4m3);
}

TEST_F(Fp8, ZerosStayAndWhatIsNotFiniteSpreads) {
  Copies zero;
  ops_.to_fp8(zero, at::zeros({16, 16}, at::kBFloat16), Fp8Format::kE4m3, Fp8Sides::kRows);
  EXPECT_EQ(zero.scale.item<float>(), 1);
  for (const double wrong :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor x = random({16, 16});
    x[3][5] = wrong;
    Copies copies;
    ops_.to_fp8(copies, x, Fp8Format::kE4m3, Fp8Sides::kRows);
    EXPECT_TRUE(std::isnan(copies.scale.item<float>()));
  }
}

TEST_F(Fp8, ProductsAreThoseOfTheConvertedNumbers) {
  Copies x, w;
  ops_.to_fp8(x, random({37, 64}), Fp8Format::kE5m2, Fp8Sides::kRows);
  ops_.to_fp8(w, random({48, 64}, 0.02), Fp8Format::kE4m3, Fp8Sides::kRows);
  const Tensor bias = random({48});
  const Tensor expected =
      exact(x.rows, x.scale).mm(exact(w.rows, w.scale).t()).add_(bias.to(at::kDouble));
  const auto product = [&](step::Dtype dtype) {
    return ops_.fp8_product({x.rows, x.scale}, {w.rows, w.scale}, dtype, step::Fp8Sums::kExact,
                            bias);
  };
  EXPECT_LT(distance(product(step::Dtype::kFloat32), expected), 1e-6);
  EXPECT_LT(distance(product(step::Dtype::kBfloat16), expected), 3e-3);
}

struct Matrix : step::Linear<Tensor> {
  explicit Matrix(bool by_input) {
    weight = by_input ? random({48, 64}, 0.1) : random({64, 48}, 0.1);
    d_weight = at::zeros(weight.sizes(), at::kFloat);
    bias = random({64});
    d_bias = at::zeros({64}, at::kFloat);
    input_major = by_input;
  }
};

// The digits of both factors are off by 2^-4 or 2^-3 at most, a third of that as a root mean square.
TEST_F(Fp8, LayersAreNearThoseOfBfloat16) {
  for (const bool by_input : {false, true}) {
    const Tensor x = random({37, 48}), dy = random({37, 64});
    const Matrix plain(by_input);
    step::Linear<Tensor> p = plain;
    p.in_block = true;
    p.d_weight = at::zeros_like(plain.d_weight);
    EXPECT_LT(distance(step::linear(ops_, p, x), step::linear(ops_, plain, x)), 0.05);
    const Tensor expected = step::linear_backward(ops_, plain, x, dy);
    const Tensor dx = step::linear_backward(ops_, p, x, dy);
    EXPECT_LT(distance(dx, expected), 0.08);
    EXPECT_GT(distance(dx, expected), 0.005) << "not in fp8";
    EXPECT_LT(distance(p.d_weight, plain.d_weight), 0.08);
    // Later, and added to what is there: the same bits.
    step::GradientQueue<Tensor> queue;
    step::Linear<Tensor> q = p;
    q.d_weight = at::zeros_like(plain.d_weight);
    const Tensor into = random({37, 48});
    const Tensor sum = step::linear_backward(ops_, q, x, dy, into.clone(), &queue);
    EXPECT_TRUE(at::equal(sum, at::add(into, dx)));
    step::add_later_gradients(ops_, std::move(queue));
    EXPECT_TRUE(at::equal(q.d_weight, p.d_weight));
  }
}

// GPUs multiply multiples of 16. The CPU computes what they do.
TEST_F(Fp8, AMatrixOfAnotherSizeStaysInBfloat16) {
  for (const auto& [out, in] : {std::pair<std::int64_t, std::int64_t>{64, 40}, {40, 48}, {1, 48}}) {
    step::Linear<Tensor> plain;
    plain.weight = random({out, in}, 0.1);
    plain.d_weight = at::zeros({out, in}, at::kFloat);
    step::Linear<Tensor> p = plain;
    p.in_block = true;
    p.d_weight = at::zeros_like(plain.d_weight);
    const Tensor x = random({32, in}), dy = random({32, out});
    step::GradientQueue<Tensor>* const at_once = nullptr;
    Copies of_x;
    EXPECT_TRUE(at::equal(step::linear(ops_, p, x, {}, &of_x), step::linear(ops_, plain, x)));
    EXPECT_FALSE(of_x.rows.defined());
    EXPECT_TRUE(at::equal(step::linear_backward(ops_, p, x, dy, {}, at_once, &of_x),
                          step::linear_backward(ops_, plain, x, dy)));
    EXPECT_TRUE(at::equal(p.d_weight, plain.d_weight));
    EXPECT_FALSE(of_x.columns.defined());
  }
}

TEST_F(Fp8, GenerationStaysInBfloat16) {
  step::Linear<Tensor> p = Matrix(false);
  const Tensor x = random({37, 48}), expected = step::linear(ops_, p, x);
  p.in_block = true;
  const Tensor generated = ops_.generating([&] { return step::linear(ops_, p, x); });
  EXPECT_TRUE(at::equal(generated, expected));
}

// Trains a copy of the same tokens by gradient descent with float32 weights.
class Trained {
 public:
  Trained(const spec::Architecture& shape, bridge::KernelChoice kernels,
          spec::CheckpointMode mode = spec::CheckpointMode::kNone)
      : shape_(shape), checkpointing_(spec::checkpointing(mode, shape)) {
    for (const auto& unit : spec::flat_layout(shape, spec::Head::kLanguageModel)) {
      weights_.push_back(at::zeros({unit.elements}, at::kBFloat16));
      grads_.push_back(at::zeros({unit.elements}, at::kFloat));
    }
    weights::initialize(shape, spec::Head::kLanguageModel, 0, weights_, 7, 0.08);
    for (const Tensor& w : weights_) masters_.push_back(w.to(at::kFloat));
    model_.emplace(shape, spec::Head::kLanguageModel, FlatTensors{weights_, grads_}, std::nullopt,
                   std::nullopt, kernels);
  }
  // The loss before the step.
  double step(double lr) {
    for (const Tensor& g : grads_) g.zero_();
    const std::int64_t batch = 6, length = 16, n = batch * length;
    const Tensor tokens = testing::tokens(batch, length, shape_.vocab_size);
    const Tensor targets = tokens.view(-1).roll({-1}, {0}).contiguous();
    auto tape = forward_train(*model_, tokens, checkpointing_);
    auto out = cross_entropy(*model_, tape.hidden, at::arange(n, at::kLong), targets,
                             at::full({n}, 1.0 / static_cast<double>(n), at::kFloat));
    backward(*model_, std::move(tape), std::move(out.d_hidden));
    for (std::size_t u = 0; u < weights_.size(); ++u) {
      masters_[u].sub_(grads_[u], lr);
      weights_[u].copy_(masters_[u]);
    }
    return -out.values.log_probs.mean().item<double>();
  }
  [[nodiscard]] Tensor gradients() const { return at::cat(grads_); }

 private:
  spec::Architecture shape_;
  spec::Checkpointing checkpointing_;
  std::vector<Tensor> weights_, grads_, masters_;
  std::optional<Transformer> model_;
};

spec::Architecture wide(spec::Architecture s) {
  s.hidden_size = 32;
  s.embedding_dim = s.embedding_dim == 24 ? 32 : 16;
  s.intermediate_size = 48;
  s.head_dim = 8;
  return s;
}

// Some 24 products are behind the first layer's gradients, each off by 5 % at random: together 25 %.
TEST_F(Fp8, GradientsOfEveryFormAreNearAndDoNotDependOnRecomputation) {
  for (const testing::Form& form : testing::forms()) {
    SCOPED_TRACE(form.name);
    const spec::Architecture shape = wide(form.shape);
    Trained plain(shape, {}), kept(shape, kFp8), again(shape, kFp8, spec::CheckpointMode::kFull);
    const double loss = plain.step(0);
    EXPECT_NEAR(kept.step(0), loss, 0.02 * loss);
    (void)again.step(0);
    EXPECT_LT(distance(kept.gradients(), plain.gradients()), 0.35);
    EXPECT_TRUE(at::equal(kept.gradients(), again.gradients()));
  }
}

// The MLP's matrices stay in bfloat16, those of attention do not.
TEST_F(Fp8, GradientsOfAModelWithOddMatricesAreNearer) {
  spec::Architecture shape = wide(testing::tiny_llama());
  Trained fp8(shape, kFp8), plain(shape, {});
  shape.intermediate_size = 40;
  Trained mixed(shape, kFp8), again(shape, kFp8, spec::CheckpointMode::kFull), odd(shape, {});
  for (Trained* const each : {&fp8, &plain, &mixed, &again, &odd}) (void)each->step(0);
  EXPECT_TRUE(at::equal(mixed.gradients(), again.gradients()));
  const double off = distance(mixed.gradients(), odd.gradients());
  EXPECT_GT(off, 0.005) << "not in fp8";
  EXPECT_LT(off, distance(fp8.gradients(), plain.gradients()));
}

// Rounding errors of single steps are a quarter of a gradient, without a common direction. So they add up
// to little, and the curves stay together while the loss falls to a quarter.
TEST_F(Fp8, TrainingFollowsTheCurveOfBfloat16) {
  const spec::Architecture shape = wide(testing::tiny_llama());
  Trained plain(shape, {}), fp8(shape, kFp8);
  double first = 0, before = 0, last = 0;
  for (int i = 0; i < 60; ++i) {
    const double expected = plain.step(0.05), loss = fp8.step(0.05);
    if (i == 0) first = expected;
    EXPECT_NEAR(loss, expected, 0.05 * first) << "step " << i;
    before = expected;
    last = loss;
  }
  EXPECT_LT(before, 0.3 * first);
  EXPECT_NE(last, before) << "not in fp8";
}

}  // namespace
}  // namespace neap::ops
