#include "bridge/product_rates.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "bridge/host_products.h"

namespace neap::bridge {
namespace {

void wait_for(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type())
      .synchronizeDevice(std::max<c10::DeviceIndex>(0, device.index()));
}

// The median over rounds of several products in a row.
double flops_of(at::Device device, at::ScalarType dtype) {
  const std::int64_t n = device.is_cpu() ? 512 : 4096;
  const int times = device.is_cpu() ? 2 : 10;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor a = at::randn({n, n}, options);
  const at::Tensor b = at::randn({n, n}, options);
  at::Tensor c = at::empty({n, n}, options);
  std::array<double, 5> rates{};
  for (std::size_t round = 0; round <= rates.size(); ++round) {
    wait_for(device);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) product_out(c, a, b);
    wait_for(device);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const auto size = static_cast<double>(n);
    if (round > 0)  // the first round warms up
      rates[round - 1] = 2 * size * size * size * times / seconds.count();
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace

ProductRates measure_products(at::Device device) {
  const at::NoGradGuard no_grad;
  return {flops_of(device, at::kBFloat16), flops_of(device, at::kFloat)};
}

}  // namespace neap::bridge
