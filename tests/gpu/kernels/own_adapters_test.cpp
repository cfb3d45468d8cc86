// Neap's kernels for adapters in decoding on a card against exact products.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bridge/no_autograd.h"
#include "device/cuda/cuda_device.h"
#include "gpu/loaded_cuda.h"
#include "kernels/compiler.h"
#include "kernels/decoding_sizes.h"
#include "ops/aten_ops.h"

namespace neap::ops {
namespace {

using at::Tensor;

class OwnAdapters : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
    at::manual_seed(7);
  }
  static Tensor random(at::IntArrayRef sizes, double spread = 1) {
    return at::randn(sizes, at::kDouble).mul_(spread).to(at::Device(at::kCUDA, 0), at::kBFloat16);
  }
  static double off(const Tensor& actual, const Tensor& expected) {
    return (actual.to(at::kCPU, at::kDouble) - expected.to(at::kCPU, at::kDouble))
        .abs()
        .max()
        .item<double>();
  }
  static step::OwnKernels own_kernels() {
    if (!has_cuda()) return {true};
    const auto card = value_or_throw(device::make_cuda_device(0));
    return {true, card->info().architecture == kernels::kWarpGroupArchitecture,
            card->info().multiprocessors};
  }
  const step::OwnKernels kernels_ = own_kernels();
  AtenOps own_{at::Device(at::kCUDA, 0), {.own = kernels_}};
  AtenOps host_{at::kCPU};
  const bridge::NoAutograd no_autograd_{};
};

TEST_F(OwnAdapters, FollowTheProductsOfFewRows) {
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const auto near = [](const Tensor& found, const Tensor& expected, int roundings) {
    const double size = std::max(1.0, expected.abs().max().item<double>());
    EXPECT_LT(off(found, expected), roundings * size / 128);
  };
  constexpr std::int64_t kIn = 896, kOut = 200;
  const double spread = 1 / std::sqrt(static_cast<double>(kIn));
  for (const std::int64_t rows : {1, 2, 7, 8, 9, 33, 64}) {
    if (rows > kernels::decoding::kTile && !kernels_.warp_groups) continue;
    for (const std::int64_t rank : {8, 16, 24, 32, 64, 128}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << rank);
      const Tensor x = random({rows, kIn});
      step::FewMatrices<Tensor> all;
      step::RowAdapters<Tensor> by;
      std::vector<Tensor> sums;
      for (std::size_t i = 0; i < 3; ++i) {
        by.out[i] = i == 1 ? 8 : kOut;
        all.weight[i] = random({by.out[i], kIn}, spread);
        Tensor sum = wide(x).mm(wide(all.weight[i]).t());
        if (i != 1 || rank == 16) {  // else without an adapter
          all.weight[3 + i] = random({rank, kIn}, spread);
          by.up[i] = random({by.out[i], rank}, 0.5);
          by.scale[i] = 0.5 + static_cast<double>(i);
          sum += wide(x).mm(wide(all.weight[3 + i]).t()).mm(wide(by.up[i]).t()) * by.scale[i];
        }
        sums.push_back(sum);
      }
      const Tensor y = own_.few_rows_products(x, all);
      const auto added = [&](const Tensor& to) {
        own_.add_row_adapters_(to, by);
        return to.narrow(1, 0, 2 * kOut + 8);
      };
      const Tensor found = added(y.clone());
      near(found, at::cat(sums, 1), 3);
      const std::int64_t fewer = std::min<std::int64_t>(rows, 3);
      EXPECT_TRUE(at::equal(found.narrow(0, 0, fewer), added(y.narrow(0, 0, fewer).clone())));
      // One matrix, added to a sum, and two that are gated.
      const step::RowAdapters<Tensor> one{{by.up[0]}, {kOut}, {by.scale[0]}};
      const Tensor of_one = own_.few_rows_products(x, {{all.weight[0], all.weight[3]}, {}});
      const Tensor sum = random({rows, kOut + 8}).narrow(1, 0, kOut);
      const Tensor expected = wide(sum) + sums[0];
      own_.add_adapted_rows_(sum, of_one, one);
      near(sum, expected, 3);
      const step::RowAdapters<Tensor> two{
          {by.up[0], by.up[2]}, {kOut, kOut}, {by.scale[0], by.scale[2]}};
      const Tensor of_two = own_.few_rows_products(
          x, {{all.weight[0], all.weight[2], all.weight[3], all.weight[5]}, {}});
      for (const auto kind : {spec::Activation::kSilu, spec::Activation::kGeluTanh}) {
        const Tensor gate = host_.activate(sums[0].to(at::kCPU), kind).to(at::kCUDA);
        near(own_.gate_adapted_rows(of_two, two, kind), gate * sums[2], 4);
      }
      EXPECT_THROW(own_.add_row_adapters_(of_one, by), Error);
    }
  }
}

}  // namespace
}  // namespace neap::ops
