// Operations in fp8 on a GPU, compared with the CPU: conversions bit by bit, products within their rounding.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "bridge/no_autograd.h"
#include "gpu/loaded_cuda.h"
#include "ops/aten_ops.h"
#include "unit/ops/fp8_copies.h"

namespace neap::ops {
namespace {

using at::Tensor;
using step::Fp8Format;
using step::Fp8Sides;
using Copies = step::Fp8Copies<Tensor>;

const at::Device kCard(at::kCUDA, 0);

class Fp8Kernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
    at::manual_seed(7);
  }
  static Tensor random(at::IntArrayRef sizes, double spread = 1) {
    return at::randn(sizes, at::kFloat).mul_(spread).to(at::kBFloat16);
  }
  // On the card and on the CPU.
  void same_copies(const Tensor& x, Fp8Format format, Fp8Sides sides) {
    Copies here, there;
    reference_.to_fp8(here, x, format, sides);
    const Tensor on_card =
        x.stride(0) == x.size(1)
            ? x.to(kCard)
            : at::empty_strided(x.sizes(), x.strides(), x.options().device(kCard)).copy_(x);
    own_.to_fp8(there, on_card, format, sides);
    const auto equal = [](const Tensor& a, const Tensor& b) {
      return a.defined() == b.defined() &&
             (!a.defined() || at::equal(a.cpu().view(at::kByte), b.view(at::kByte)));
    };
    EXPECT_TRUE(at::allclose(there.scale.cpu(), here.scale, 0, 0, /*equal_nan=*/true));
    EXPECT_TRUE(equal(there.rows, here.rows)) << "rows of " << x.sizes();
    EXPECT_TRUE(equal(there.columns, here.columns)) << "columns of " << x.sizes();
  }

  AtenOps own_{kCard, {.own = {true}, .fp8 = true}};
  AtenOps reference_{at::kCPU, {.fp8 = true}};
  const bridge::NoAutograd no_autograd_{};
};

TEST_F(Fp8Kernels, ConvertAsTheCpuDoes) {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2})
    for (const Fp8Sides sides : {Fp8Sides::kRows, Fp8Sides::kColumns, Fp8Sides::kBoth})
      for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 16},
                                          {7, 48},
                                          {128, 128},
                                          {129, 144},
                                          {1000, 896},
                                          {4099, 1536}})
        for (const double spread : {1e-36, 0.02, 1.0, 1e30})
          same_copies(random({rows, columns}, spread), format, sides);
}

TEST_F(Fp8Kernels, ConvertPartsOfRows) {
  same_copies(random({300, 256}).narrow(1, 64, 128), Fp8Format::kE4m3, Fp8Sides::kBoth);
}

TEST_F(Fp8Kernels, ConvertZerosAndSpreadWhatIsNotFinite) {
  same_copies(at::zeros({64, 64}, at::kBFloat16), Fp8Format::kE4m3, Fp8Sides::kBoth);
  for (const float wrong :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const Tensor x = random({64, 64});
    x[5][9] = wrong;
    Copies copies;
    own_.to_fp8(copies, x.to(kCard), Fp8Format::kE4m3, Fp8Sides::kRows);
    EXPECT_TRUE(at::isnan(copies.scale).item<bool>());
  }
}

TEST_F(Fp8Kernels, AKnownScaleIsTaken) {
  testing::expect_one_scale(own_, random({300, 128}).to(kCard), Fp8Format::kE5m2);
}

TEST_F(Fp8Kernels, MultiplyAsTheCpuDoesAndTwiceAlike) {
  for (const auto& [m, n, k] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 16, 16},
                                {37, 48, 64},
                                {512, 256, 1536},
                                {130, 8960, 1536}})
    for (const bool gradient : {false, true})
      for (const step::Dtype dtype : {step::Dtype::kBfloat16, step::Dtype::kFloat32}) {
        Copies a, b;
        const Tensor x = random({m, k}), w = random({n, k}, 0.02);
        own_.to_fp8(a, x.to(kCard), gradient ? Fp8Format::kE5m2 : Fp8Format::kE4m3,
                    Fp8Sides::kRows);
        own_.to_fp8(b, w.to(kCard), Fp8Format::kE4m3, Fp8Sides::kRows);
        const Tensor bias = dtype == step::Dtype::kBfloat16 && !gradient ? random({n}) : Tensor();
        const step::Fp8Sums sums = gradient ? step::Fp8Sums::kExact : step::Fp8Sums::kFast;
        const auto product = [&] {
          return own_.fp8_product({a.rows, a.scale}, {b.rows, b.scale}, dtype, sums,
                                  bias.defined() ? bias.to(kCard) : bias);
        };
        const Tensor expected = reference_
                                    .fp8_product({a.rows.cpu(), a.scale.cpu()},
                                                 {b.rows.cpu(), b.scale.cpu()}, dtype, sums, bias)
                                    .to(at::kDouble);
        const Tensor found = product();
        const double off =
            ((found.cpu().to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
        RecordProperty("off", std::to_string(off));
        std::printf("%lld x %lld x %lld %s: off by %.2g\n", static_cast<long long>(m),
                    static_cast<long long>(n), static_cast<long long>(k),
                    gradient ? "e5m2 e4m3" : "e4m3 e4m3", off);
        EXPECT_LT(off, 5e-3);
        EXPECT_TRUE(at::equal(found, product()));
      }
}

}  // namespace
}  // namespace neap::ops
