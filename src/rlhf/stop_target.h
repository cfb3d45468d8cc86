// The value of a validation metric that ends a training before its last step (trainer.stop_metric,
// stop_value, stop_mode).
//
// Threads   one at a time.   Failure   Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "rlhf/trainer.h"
#include "spec/job.h"

namespace neap::rlhf {

class StopTarget {
 public:
  explicit StopTarget(const spec::TrainerConfig& config) : config_(&config) {}

  /// The validation after `step`; that before the first step does not end a training. Fails where the
  /// metric is missing.
  void note(std::int64_t step, const Metrics& metrics);
  /// By the last validation; never by a NaN.
  [[nodiscard]] bool reached() const;
  /// "val/loss 0.71 at step 140 (trainer.stop_value 0.75)", of the last validation.
  [[nodiscard]] std::string text() const;

  /// For the checkpoint: the last validation, not what it was compared with. Null where there is none.
  [[nodiscard]] Json to_json() const;
  /// From the checkpoint of `step`, if its weights were validated by the same metric.
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
