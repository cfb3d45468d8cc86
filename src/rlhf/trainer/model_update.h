// Runs the updates of one model in a training step: phases, optimizer steps and metrics.
//
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "rlhf/trainer/trainer.h"
#include "spec/recipe/recipe.h"
#include "step/training/training.h"
#include "train/packed_batch.h"

namespace neap::rlhf {

/// Suffixes of metrics. An update is skipped if its gradient norm is not finite.
inline constexpr const char* kSkippedUpdates = "/skipped_updates";
inline constexpr const char* kSkippedInARow = "/skipped_updates_in_a_row";

class ModelUpdate {
 public:
  /// The updates of training step `step` for the model of `worker`, with phase body `body`. Fails
  /// for a model that cannot be trained.
  ModelUpdate(Context& context, train::ModelWorker& worker, spec::Body body, std::int64_t step);

  /// Arranges `batch` for the updates. Its rows are this rank's rows of the updates.
  [[nodiscard]] train::ArrangedBatch arrange(train::Sequences batch) const;
  /// The loss denominators of the mini-batch that starts with row `first` of the arranged batch.
  using Scale = std::function<step::LossScale(std::int64_t first)>;
  /// Runs every mini-batch of every epoch, in the phases that the plan uses.
  void run(const step::Experience<at::Tensor>& arranged, const Scale& scale);

  /// Adds the losses' metrics over all ranks' micro-batches, PREFIX/grad_norm and PREFIX/lr. If
  /// updates were skipped, it also adds their number in this step and the number in a row. Every
  /// rank calls it.
  void put(Metrics& metrics, const std::string& prefix) const;

 private:
  void add(const step::LossNumbers& numbers);
  struct Sums {
    // Metrics of two kinds. Shares are summed within a mini-batch and averaged over mini-batches;
    // means are averaged by weight.
    std::map<std::string, double> shares;
    std::map<std::string, std::pair<double, double>> means;  // sum, weight
  };
  /// The sums of the last pipeline stage.
  [[nodiscard]] Sums shared() const;

  Context& context_;
  train::ModelWorker& worker_;
  spec::Body body_;
  const spec::ModelSource& source_;
  spec::UpdateShape shape_;
  std::int64_t first_update_, skipped_ = 0;
  double grad_norm_ = 0, lr_ = 0;  // mean over updates, and last value
  Sums sums_;
};

}  // namespace neap::rlhf
