// Measured throughput of a device, for time estimates in plans.
//
// For a GPU: what `neap doctor` measured (rate_file.h), else values of an H200. For the CPU: a
// server's core per thread.
//
// Threads   stateless functions.
#pragma once

#include <string>

#include "plan/results/memory_plan.h"
#include "step/counting/counting_ops.h"

namespace neap::plan {

struct PlanRates {
  step::KernelRates kernels;
  Link link;
  std::string from;  ///< for messages: "measured on 2026-11-22 by neap doctor"
};
[[nodiscard]] PlanRates rates_of_gpu(const std::string& name);
/// For planning a GPU job on a machine without one.
[[nodiscard]] PlanRates rates_without_gpu();
[[nodiscard]] PlanRates rates_of_host(std::int64_t threads);

/// Throughput of kernels without a measurement.
[[nodiscard]] step::KernelRates default_rates(bool cuda, std::int64_t threads);

/// Throughput of a GPU that works with others. Its operations take longer than alone, most with
/// tensor or context parallelism (`divide_passes`).
[[nodiscard]] step::KernelRates rates_among_ranks(step::KernelRates alone, bool divide_passes);

}  // namespace neap::plan
