// The checkpoint with the best validation (trainer.best_metric), over this run and the runs that it
// resumed.
//
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/json.h"
#include "rlhf/trainer/trainer.h"
#include "spec/job/job.h"

namespace neap::rlhf {

class BestCheckpoint {
 public:
  explicit BestCheckpoint(const spec::TrainerConfig& config) : config_(&config) {}

  /// Whether the validation after `step` is the best so far. A later one must be strictly better.
  /// The validation before the first step has no checkpoint, so it only affects better_start().
  /// Fails if the metric is missing.
  bool offer(std::int64_t step, const Metrics& metrics);
  /// The best step so far.
  [[nodiscard]] std::optional<std::int64_t> step() const;
  [[nodiscard]] double value() const { return best_->value; }
  /// The value before the first step, if it was better than the best checkpoint's.
  [[nodiscard]] std::optional<double> better_start() const;

  /// For the checkpoint; null if nothing was validated.
  [[nodiscard]] Json to_json() const;
  /// Restores from a checkpoint, if it compared the same metric and the best checkpoint is still in
  /// `root`.
  void restore(const Json& saved, const std::filesystem::path& root);

 private:
  struct Best {
    std::int64_t step = 0;
    double value = 0;
  };
  const spec::TrainerConfig* config_;
  std::optional<Best> best_;
  std::optional<double> start_;
};

}  // namespace neap::rlhf
