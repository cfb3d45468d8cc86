#include "bridge/host_products.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <chrono>

namespace neap::bridge {
namespace {

struct Operands {
  at::Tensor a, b;
};

// m x k and k x n values of `dtype`; transposed ones are views.
Operands operands(std::int64_t m, std::int64_t k, std::int64_t n, at::ScalarType dtype,
                  bool transposed) {
  at::Tensor a = at::randn(transposed ? at::IntArrayRef{k, m} : at::IntArrayRef{m, k});
  at::Tensor b = at::randn(transposed ? at::IntArrayRef{n, k} : at::IntArrayRef{k, n});
  a = a.to(dtype);
  b = b.to(dtype);
  return transposed ? Operands{a.t(), b.t()} : Operands{a, b};
}

// Results of float64 up to one rounding of the result's type and float32's of the sum.
void expect_rounded_once(const at::Tensor& result, const at::Tensor& exact) {
  const double relative = result.scalar_type() == at::kFloat  ? 1e-5
                          : result.scalar_type() == at::kHalf ? 1.0 / 2048
                                                              : 1.0 / 256;
  const at::Tensor off = (result.to(at::kDouble) - exact).abs();
  EXPECT_LE((off - relative * exact.abs()).max().item<double>(), 1e-4)
      << result.scalar_type() << " of " << result.sizes();
}

TEST(HostProducts, AreRoundedOnceInEveryType) {
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const bool transposed : {false, true}) {
      const auto [a, b] = operands(5, 70, 33, dtype, transposed);
      const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
      at::Tensor out = at::empty({5, 33}, a.options());
      expect_rounded_once(product_out(out, a, b), exact);
      const at::Tensor bias = at::randn({33}).to(dtype);
      expect_rounded_once(product_plus_out(out, bias, a, b), exact + bias.to(at::kDouble));
      const at::Tensor c = at::randn({5, 33}).to(dtype);
      const at::Tensor before = c.to(at::kDouble);
      add_product_(c, a, b, 0.5);
      expect_rounded_once(c, before + 0.5 * exact);
      at::Tensor batch = at::empty({2, 5, 33}, a.options());
      batch_product_out(batch, a.expand({2, 5, 70}), b.expand({2, 70, 33}));
      expect_rounded_once(batch[1], exact);
    }
}

TEST(HostProducts, InBlocksOfFloat32AreRoundedOnce) {
  const at::NoGradGuard no_grad;
  at::manual_seed(2);
  // More rows, columns and depth than a block has, and one value of each more.
  for (const bool transposed : {false, true}) {
    const auto [a, b] = operands(257, 4097, 258, at::kBFloat16, transposed);
    const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
    at::Tensor out = at::empty({257, 258}, a.options());
    product_through_float32(out, {}, a, b);
    EXPECT_LE((out.to(at::kDouble) - exact - exact.abs() / 256).max().item<double>(), 1e-3);
    const at::Tensor sums = at::ones({257, 258});
    product_through_float32(sums, sums, a, b, 2);
    EXPECT_LE((sums.to(at::kDouble) - 1 - 2 * exact).abs().max().item<double>(), 1e-2);
  }
}

// libtorch alone takes 100 times as long as float32 where the processor has no AVX-512.
TEST(HostProducts, OfBfloat16AreNotMuchSlowerThanFloat32) {
  const at::NoGradGuard no_grad;
  const auto seconds_of = [](at::ScalarType dtype) {
    const auto [a, b] = operands(512, 512, 512, dtype, false);
    at::Tensor out = at::empty({512, 512}, a.options());
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      product_out(out, a, b);
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  EXPECT_LT(seconds_of(at::kBFloat16), 15 * seconds_of(at::kFloat));
}

}  // namespace
}  // namespace neap::bridge
