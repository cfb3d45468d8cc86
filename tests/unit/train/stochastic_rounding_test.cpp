#include "ops/rounding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "random_units.h"
#include "train/optimizer.h"
#include "unit_with_state.h"

namespace neap::train {
namespace {

using spec::Dtype;
using testing::spec_of;
using testing::unit_of;
using testing::zero_unit;

constexpr double kBfloat16Step = 1.0 / 128;  // spacing of bfloat16 in [1, 2)

// Of bits drawn at random in [1, 2), a value between two neighbours.
TEST(StochasticRounding, IsUnbiased) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = 1 << 20;
  const at::Tensor noise = ops.rounding_noise(17, kN);
  const at::Tensor out = at::empty({kN}, at::kBFloat16);
  for (const double fraction : {0.0, 1.0 / 65536, 0.1, 0.25, 0.5, 0.9, 65535.0 / 65536}) {
    for (const double sign : {1.0, -1.0}) {
      const double low = 1.25;
      const double value = sign * (low + fraction * kBfloat16Step);
      ops.round_stochastically_(out, at::full({kN}, value, at::kFloat), noise, 5, 0);
      const at::Tensor up = out.to(at::kDouble).abs().ne(low);
      EXPECT_EQ(out.to(at::kDouble).abs().gt(low + kBfloat16Step).sum().item<std::int64_t>(), 0);
      const double share = up.to(at::kDouble).mean().item<double>();
      // Five standard deviations of a mean of kN draws.
      const double deviation = std::sqrt(fraction * (1 - fraction) / kN);
      EXPECT_NEAR(share, fraction, 5 * deviation + 1e-12) << value;
    }
  }
}

// Over steps, for one element: the numbers of different keys are as independent as those of one.
TEST(StochasticRounding, DrawsAnewInEveryStepForEveryElement) {
  constexpr int kSteps = 4096;
  constexpr std::int64_t kN = 64;
  ops::AtenOps ops(at::kCPU);
  const double fraction = 0.3;
  const at::Tensor value = at::full({kN}, 1 + fraction * kBfloat16Step, at::kFloat);
  at::Tensor ups = at::empty({kSteps, kN}, at::kDouble);
  for (int t = 0; t < kSteps; ++t) {
    const std::uint64_t key = random_key({1, static_cast<std::uint64_t>(t), 0});
    const at::Tensor out = at::empty({kN}, at::kBFloat16);
    ops.round_stochastically_(out, value, ops.rounding_noise(key, kN), random_key({key, 0}), 0);
    ups[t].copy_(out.to(at::kDouble).gt(1).to(at::kDouble));
  }
  const double deviation = std::sqrt(fraction * (1 - fraction) / kSteps);
  const at::Tensor means = ups.mean(0);
  EXPECT_LT((means - fraction).abs().max().item<double>(), 5 * deviation);
  // No two elements go together, and no two steps.
  const auto largest_correlation = [&](const at::Tensor& x) {
    const at::Tensor c = at::corrcoef(x);
    return (c - at::eye(c.size(0), c.options())).abs().max().item<double>();
  };
  EXPECT_LT(largest_correlation(ups.t()), 6 / std::sqrt(kSteps));
  EXPECT_LT(largest_correlation(ups.view({64, -1})), 6 / std::sqrt(kSteps * kN / 64));
}

TEST(StochasticRounding, OfAnElementDependsOnItsPlaceAlone) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = step::kNoise + 1000;  // into the second tile
  const at::Tensor noise = ops.rounding_noise(9, step::kNoise);
  const at::Tensor value = at::rand({kN}, at::kFloat);
  const at::Tensor whole = at::empty({kN}, at::kBFloat16);
  ops.round_stochastically_(whole, value, noise, 4, 0);
  const at::Tensor pieces = at::empty({kN}, at::kBFloat16);
  for (std::int64_t first = 0; first < kN; first += 999'983) {
    const std::int64_t n = std::min<std::int64_t>(999'983, kN - first);
    ops.round_stochastically_(pieces.narrow(0, first, n), value.narrow(0, first, n), noise, 4,
                              first);
  }
  EXPECT_TRUE(same_bits(whole, pieces));
}

// Elements that read the same number of the noise go together no more often than others, over keys.
TEST(StochasticRounding, TilesOfTheNoiseAreIndependent) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = 1000;
  constexpr std::uint64_t kKeys = 400;
  const double fraction = 0.3;
  const at::Tensor noise = ops.rounding_noise(9, kN);
  const at::Tensor value = at::full({kN}, 1 + fraction * kBfloat16Step, at::kFloat);
  double equal = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const at::Tensor first = at::empty({kN}, at::kBFloat16);
    const at::Tensor second = at::empty({kN}, at::kBFloat16);
    ops.round_stochastically_(first, value, noise, key, 0);
    ops.round_stochastically_(second, value, noise, key, step::kNoise);
    equal += first.eq(second).to(at::kDouble).mean().item<double>() / kKeys;
  }
  EXPECT_NEAR(equal, fraction * fraction + (1 - fraction) * (1 - fraction), 0.06);
}

TEST(StochasticRounding, OfAGpuHasTheSameBits) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = 100'003;
  const at::Tensor noise = ops.rounding_noise(123456789, kN);
  EXPECT_TRUE(noise.equal(ops::rounding_noise_by_operations(at::kCPU, 123456789, kN)));
  at::Tensor value = at::randn({kN}).mul_(at::randn({kN}).exp_());
  value[0] = 0;
  value[1] = std::numeric_limits<float>::infinity();
  value[2] = -1.5;  // a bfloat16
  const at::Tensor host = at::empty({kN}, at::kBFloat16);
  const at::Tensor gpu = at::empty({kN}, at::kBFloat16);
  ops::round_on_host(host, value, noise, 0x3a7b);
  ops::round_by_operations(gpu, value, noise, 0x3a7b);
  EXPECT_TRUE(same_bits(host, gpu));
  EXPECT_TRUE(same_bits(host.narrow(0, 0, 3), value.narrow(0, 0, 3).to(at::kBFloat16)));
}

// A step of 1/64 of bfloat16's spacing, 64 times: rounding to nearest would not move at all.
TEST(StochasticRounding, LetsBfloat16WeightsFollowSmallUpdates) {
  spec::OptimizerConfig config;
  config.kind = "sgd";
  config.weight_decay = 0;
  config.master_dtype = spec::Dtype::kBfloat16;
  const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
  constexpr std::int64_t kN = 4096;
  const OptimizerUnit unit = zero_unit(spec, unit_of({{kN}}));
  EXPECT_FALSE(unit.master().defined());
  at::Tensor(unit.weights).fill_(1.5);
  at::Tensor(unit.gradients).fill_(-1);
  Optimizer sgd(config, spec, 2, {unit}, alone());
  for (int i = 0; i < 64; ++i) make_step(sgd, kBfloat16Step / 64);
  const at::Tensor moved = unit.weights.to(at::kDouble) - 1.5;
  EXPECT_NEAR(moved.mean().item<double>() / kBfloat16Step, 1, 0.06);
  EXPECT_NEAR(moved.std().item<double>() / kBfloat16Step, 1, 0.1);
}

}  // namespace
}  // namespace neap::train
