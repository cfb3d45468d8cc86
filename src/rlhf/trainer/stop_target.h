// Ends a training early once a validation metric reaches a value (trainer.stop_metric, stop_value,
// stop_mode).
//
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "rlhf/trainer/trainer.h"
#include "spec/job/job.h"

namespace neap::rlhf {

class StopTarget {
 public:
  explicit StopTarget(const spec::TrainerConfig& config) : config_(&config) {}

  /// Records the validation after `step`. The validation before the first step does not end a
  /// training. Fails if the metric is missing.
  void note(std::int64_t step, const Metrics& metrics);
  /// Whether the last validation reached the target. A NaN never does.
  [[nodiscard]] bool reached() const;
  /// "val/loss 0.71 at step 140 (trainer.stop_value 0.75)", for the last validation.
  [[nodiscard]] std::string text() const;

  /// For the checkpoint: the last validation without its target. Null if there is none.
  [[nodiscard]] Json to_json() const;
  /// Restores from the checkpoint of `step`, if its weights were validated with the same metric.
  void restore(const Json& saved, std::int64_t step);

 private:
  struct Seen {
    std::int64_t step = 0;
    double value = 0;
  };
  const spec::TrainerConfig* config_;
  std::optional<Seen> last_;
};

}  // namespace neap::rlhf
