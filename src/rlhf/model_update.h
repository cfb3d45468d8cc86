// The updates of one model in a training step: its phases, optimizer steps and metrics.
//
// Threads   one at a time.   Failure   Error.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "rlhf/trainer.h"
#include "spec/recipe.h"
#include "step/training.h"
#include "train/packed_batch.h"

namespace neap::rlhf {

/// Ends of metrics' names. An update is skipped if the norm of its gradients is not finite.
inline constexpr const char* kSkippedUpdates = "/skipped_updates";
inline constexpr const char* kSkippedInARow = "/skipped_updates_in_a_row";

class ModelUpdate {
 public:
  /// The updates of training step `step` by `body`, whose model `worker` is. Fails for a model that
  /// cannot be trained.
  ModelUpdate(Context& context, train::ModelWorker& worker, spec::Body body, std::int64_t step);

  /// `batch` as the updates take it; its rows are theirs.
  [[nodiscard]] train::ArrangedBatch arrange(train::Sequences batch) const;
  /// What losses are divided by in the mini-batch that starts with the arranged batch's row `first`.
  using Scale = std::function<step::LossScale(std::int64_t first)>;
  /// Every mini-batch of every epoch of such a batch, in the phases that the plan divides them into.
  void run(const step::Experience<at::Tensor>& arranged, const Scale& scale);

  /// The losses' numbers over all ranks' micro-batches, and PREFIX/grad_norm and PREFIX/lr; where updates were
  /// skipped also how many of this step, and how many in a row until its end. Every rank calls it.
  void put(Metrics& metrics, const std::string& prefix) const;

 private:
  void add(const step::LossNumbers& numbers);
  struct Sums {
    // Shares add up in a mini-batch, and mini-batches are averaged; means are averaged by weight.
    std::map<std::string, double> shares;
    std::map<std::string, std::pair<double, double>> means;  // sum, weight
  };
  /// Those of the last stage.
  [[nodiscard]] Sums shared() const;

  Context& context_;
  train::ModelWorker& worker_;
  spec::Body body_;
  const spec::ModelSource& source_;
  spec::UpdateShape shape_;
  std::int64_t first_update_, skipped_ = 0;
  double grad_norm_ = 0, lr_ = 0;  // a mean, the last one
  Sums sums_;
};

}  // namespace neap::rlhf
