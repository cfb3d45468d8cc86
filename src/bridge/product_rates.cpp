#include "bridge/product_rates.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "bridge/host_products.h"
#include "device/cuda/cuda_device.h"
#include "kernels/compiler.h"

namespace neap::bridge {
namespace {

void wait_for(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type())
      .synchronizeDevice(std::max<c10::DeviceIndex>(0, device.index()));
}

std::int64_t side_on(at::Device device) {
  return device.is_cpu() ? 512 : 4096;
}

// The median over rounds of several products in a row, of matrices of side_on().
template <class Product>
double flops_of(at::Device device, const Product& product) {
  const std::int64_t n = side_on(device);
  const int times = device.is_cpu() ? 2 : 10;
  std::array<double, 5> rates{};
  for (std::size_t round = 0; round <= rates.size(); ++round) {
    wait_for(device);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) product();
    wait_for(device);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const auto size = static_cast<double>(n);
    if (round > 0)  // the first round warms up
      rates[round - 1] = 2 * size * size * size * times / seconds.count();
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

double flops_of(at::Device device, at::ScalarType dtype) {
  const std::int64_t n = side_on(device);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor a = at::randn({n, n}, options);
  const at::Tensor b = at::randn({n, n}, options);
  at::Tensor c = at::empty({n, n}, options);
  return flops_of(device, [&] { product_out(c, a, b); });
}

double fp8_flops_of(at::Device device) {
  if (!device.is_cuda()) return 0;
  const int ordinal = std::max<int>(0, device.index());
  if (value_or_throw(device::make_cuda_device(ordinal))->info().architecture <
      kernels::kFp8Architecture)
    return 0;
  const std::int64_t n = side_on(device);
  const auto made = [&](at::ScalarType type) {
    return at::randn({n, n}, at::TensorOptions().dtype(at::kBFloat16).device(device)).to(type);
  };
  const at::Tensor a = made(at::kFloat8_e4m3fn), b = made(at::kFloat8_e4m3fn);
  const at::Tensor scale = at::ones({1}, at::TensorOptions().dtype(at::kFloat).device(device));
  at::Tensor c = made(at::kBFloat16);
  return flops_of(device, [&] { fp8_product_out(c, {a, scale}, {b, scale}, {}, true); });
}

}  // namespace

ProductRates measure_products(at::Device device) {
  const at::NoGradGuard no_grad;
  return {flops_of(device, at::kBFloat16), flops_of(device, at::kFloat), fp8_flops_of(device)};
}

}  // namespace neap::bridge
