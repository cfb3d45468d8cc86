#include "plan/rates/device_rates.h"

#include "base/format.h"
#include "base/log.h"
#include "plan/rates/rate_file.h"

namespace neap::plan {
namespace {

// Copies within host memory, for the CPU device; both directions share it.
constexpr double kHostCopyRate = 8e9;

// Factors by which operations of several ranks are slower than simulated, so that simulated and
// measured steps agree. The first is the median of five data-parallel or pipeline jobs on two
// H100s; the other is the mean of two tensor- or context-parallel jobs. bench/ranks/published.py
// prints them.
constexpr double kSlowdown = 1.02;
constexpr double kSlowdownOfPasses = 1.16;

// A record without matrix products comes from a doctor without libtorch.
void take_measured(PlanRates& rates, const MeasuredRates& measured) {
  const device::Rates& d = measured.device;
  rates.link = {d.to_host, d.to_device, d.both, d.remap};
  rates.kernels.bytes = d.memory;
  if (measured.half_flops > 0) rates.kernels.half_flops = measured.half_flops;
  if (measured.single_flops > 0) rates.kernels.single_flops = measured.single_flops;
  if (measured.fp8_flops > 0) rates.kernels.fp8_flops = measured.fp8_flops;
  if (measured.issue_seconds > 0) rates.kernels.issue_seconds = measured.issue_seconds;
  rates.from = format("measured on {} by neap doctor{}", measured.date,
                      measured.half_flops > 0 ? "" : ", matrix products as on an H200");
}

}  // namespace

step::KernelRates default_rates(bool cuda, std::int64_t threads) {
  // Values of an H200: products of 4096^3, and traffic of a copy. For the CPU: an operation of
  // libtorch, from decoding OPT-1.3b (10.9 us) and Qwen2.5-0.5B (13 us). Kernels in CUDA graphs
  // start after 1.2 us and products after 3.4 us (H100, tests/gpu/products.py); kernels on streams
  // take a little longer.
  if (cuda) return {775e12, 50e12, 4e12, 2e-6, 12e-6, 2.2e-6, 1419e12};
  const auto n = static_cast<double>(threads);
  return {30e9 * n, 60e9 * n, 8e9 * n, 2e-6, 0, 0, 30e9 * n};
}

step::KernelRates rates_among_ranks(step::KernelRates alone, bool divide_passes) {
  const double slowdown = divide_passes ? kSlowdownOfPasses : kSlowdown;
  alone.half_flops /= slowdown;
  alone.single_flops /= slowdown;
  alone.fp8_flops /= slowdown;
  alone.bytes /= slowdown;
  alone.operation_seconds *= slowdown;
  alone.product_start_seconds *= slowdown;
  return alone;
}

PlanRates rates_without_gpu() {
  return {default_rates(true, 0), Link{}, "measured on an H200"};
}

PlanRates rates_of_gpu(const std::string& name) {
  PlanRates rates = rates_without_gpu();
  if (name.find("H200") == std::string::npos)
    rates.from += "; neap doctor measures and keeps those of this GPU";
  const Result<std::optional<MeasuredRates>> found = load_rates(name);
  if (!found.ok()) {
    log::warn(found.status().message() + ". It is ignored; neap doctor writes a new one");
  } else if (*found) {
    take_measured(rates, **found);
  }
  return rates;
}

PlanRates rates_of_host(std::int64_t threads) {
  PlanRates rates;
  rates.kernels = default_rates(false, threads);
  // The copies already include remapping.
  rates.link = {kHostCopyRate, kHostCopyRate, kHostCopyRate, 0};
  rates.from = "of a server's core for each thread";
  return rates;
}

}  // namespace neap::plan
