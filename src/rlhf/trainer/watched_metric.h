// Validation metrics that keys of the job name: trainer.best_metric, trainer.stop_metric.
//
// Threads   any.
// Failure   Error if validation does not provide the metric.
#pragma once

#include <string>
#include <string_view>

#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

/// The value of the metric that `key` of the job names.
[[nodiscard]] double watched_metric(std::string_view key, const std::string& metric,
                                    const Metrics& metrics);
/// `mode` is "max" or "min".
[[nodiscard]] inline bool is_better(const std::string& mode, double value, double than) {
  return mode == "min" ? value < than : value > than;
}

}  // namespace neap::rlhf
