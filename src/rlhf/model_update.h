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
#include "train/packed_batch.h"

namespace neap::rlhf {

class ModelUpdate {
 public:
  /// The updates of training step `step` by `body`, whose model `worker` is. Fails for a model that
  /// cannot be trained.
  ModelUpdate(Context& context, train::ModelWorker& worker, spec::Body body, std::int64_t step);

  /// Forward, loss and backward of rows [first, first + count), without autograd.
  using Micro =
      std::function<void(std::int64_t first, std::int64_t count, const spec::Checkpointing& keep)>;
  /// `batch` as the updates take it; its rows are theirs.
  [[nodiscard]] train::ArrangedBatch arrange(train::Sequences batch) const;
  /// Every mini-batch of every epoch of such a batch: the micro-batches, then one optimizer step.
  /// `begin(first)` is called before the first micro-batch of a mini-batch, which is the one with the
  /// given batch's row `first`.
  void run(const train::Sequences& arranged, const Micro& micro,
           const std::function<void(std::int64_t first)>& begin = {});

  /// A micro-batch's share of the mini-batch's `name`: shares add up, mini-batches are averaged.
  void add_share(const std::string& name, double value) { shares_[name] += value; }
  /// A mean over `weight` elements, which is averaged over micro-batches and ranks.
  void add_mean(const std::string& name, double value, double weight);

  /// Metrics of all ranks' micro-batches, and PREFIX/grad_norm and PREFIX/lr. Every rank calls it
  /// after the same names were added.
  void put(Metrics& metrics, const std::string& prefix) const;

 private:
  class Optimizer;

  Context& context_;
  train::ModelWorker& worker_;
  spec::Body body_;
  const spec::ModelSource& source_;
  spec::UpdateShape shape_;
  std::int64_t first_update_;
  double grad_norms_ = 0, lr_ = 0;
  std::map<std::string, double> shares_;
  std::map<std::string, std::pair<double, double>> means_;  // sum, weight
};

}  // namespace neap::rlhf
