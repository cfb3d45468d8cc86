// Metrics of validation that keys of the job name: trainer.best_metric, trainer.stop_metric.
//
// Threads   any.   Failure   Error where validation does not give the metric.
#pragma once

#include <string>
#include <string_view>

#include "rlhf/trainer.h"

namespace neap::rlhf {

/// Of the metric that `key` of the job names.
[[nodiscard]] double watched_metric(std::string_view key, const std::string& metric,
                                    const Metrics& metrics);
/// With mode "max" or "min".
[[nodiscard]] inline bool is_better(const std::string& mode, double value, double than) {
  return mode == "min" ? value < than : value > than;
}

}  // namespace neap::rlhf
