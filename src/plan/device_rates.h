// What a device reaches, for plans that count seconds.
//
// Of a GPU: what `neap doctor` measured on it (rate_file.h), else the H200's, measured as well. Of the
// host device: those of a server's core for each thread.
#pragma once

#include <string>

#include "plan/memory_plan.h"
#include "step/counting_ops.h"

namespace neap::plan {

struct PlanRates {
  step::KernelRates kernels;
  Link link;
  std::string from;  ///< for people: "measured on 2026-11-22 by neap doctor"
};
[[nodiscard]] PlanRates rates_of_gpu(const std::string& name);
/// Where a plan is made for a GPU and there is none.
[[nodiscard]] PlanRates rates_without_gpu();
[[nodiscard]] PlanRates rates_of_host(std::int64_t threads);

/// Of kernels alone, without a measurement.
[[nodiscard]] step::KernelRates default_rates(bool cuda, std::int64_t threads);

/// Of a GPU that works together with others: its operations take longer than alone, most where they divide the passes of
/// a model (by tensors or sequences).
[[nodiscard]] step::KernelRates rates_among_ranks(step::KernelRates alone, bool divide_passes);

}  // namespace neap::plan
