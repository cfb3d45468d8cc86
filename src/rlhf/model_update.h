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
#include "step/phases.h"

namespace neap::rlhf {

struct UpdateSpec {
  spec::ModelId model = spec::ModelId::kActor;
  spec::PhaseId phase =
      spec::PhaseId::kTrain;  ///< its name where backward and update are one phase
  const spec::OptimizerConfig& optim;
  double grad_clip = 0;
  std::int64_t rows = 0;    ///< of this rank
  step::UpdateShape shape;  ///< in rows
};

class ModelUpdate {
 public:
  /// The updates of training step `step`. Fails for a model that cannot be trained.
  ModelUpdate(Context& context, train::ModelWorker& worker, const UpdateSpec& spec,
              std::int64_t step);

  /// Forward, loss and backward of rows [first, first + count), without autograd.
  using Micro =
      std::function<void(std::int64_t first, std::int64_t count, const spec::Checkpointing& keep)>;
  /// Every mini-batch of every epoch: the micro-batches, then one optimizer step. `begin(first)` is
  /// called before the first micro-batch of a mini-batch with its first row.
  void run(const Micro& micro, const std::function<void(std::int64_t first)>& begin = {});

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
  UpdateSpec spec_;
  std::int64_t first_update_, updates_;
  double grad_norms_ = 0, lr_ = 0;
  std::map<std::string, double> shares_;
  std::map<std::string, std::pair<double, double>> means_;  // sum, weight
};

}  // namespace neap::rlhf
