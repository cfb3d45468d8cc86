// The model for rollouts, if rollouts do not read the trained weights in place. Rollouts have other
// weights if training offloads its own, has them in ZeRO shards or stages, or has another
// tensor-parallel size, or if the job has a copy for rollouts. They are all of the model's weights, or
// this rank's shard of spec::Job::generation_mesh.
//
// Parts     units are gathered one after another into a buffer of their source. From there, the
//           training tensor-parallel group exchanges the elements that rollouts need.
// Threads   one at a time.
// Failure   Error, as of a communicator.
// Cost      each call of gather() gathers this rank's training shard and receives what it lacks.
//           Units of stages are broadcast; each stage loads its own meanwhile, unless they are
//           exchanged.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "ops/transformer.h"
#include "train/part_exchange.h"
#include "train/rollout_file.h"
#include "train/unit_store.h"

namespace neap::train {

class ModelGenerator {
 public:
  /// `adapters` is null without `lora`. All stores must outlive it.
  ModelGenerator(const RankModel& model, UnitStore& base, UnitStore* adapters,
                 std::optional<ops::Lora> lora);

  [[nodiscard]] ops::Transformer& model() { return *model_; }
  /// Updates the rollout weights. Every rank calls it, in a phase that gathers weights.
  void gather();
  /// Their file; only if the plan stores them.
  [[nodiscard]] RolloutFile& file() { return file_.value(); }

 private:
  struct Gathered {
    UnitStore* units = nullptr;
    std::vector<at::Tensor> to;           ///< undefined: not gathered
    std::unique_ptr<PartExchange> parts;  ///< null: training and rollouts use the same shards
  };
  [[nodiscard]] at::Tensor region(std::string_view name) const {
    return rank_.region(spec::TagKind::kBlocks, name);
  }
  /// The rollout's weights, which gather() updates. `only_blocks`: rollouts read the trained tables.
  [[nodiscard]] std::vector<at::Tensor> add(UnitStore& units, bool only_blocks);
  /// The exchange from training shards to rollout shards; null if both are the same.
  [[nodiscard]] std::unique_ptr<PartExchange> exchange_of(const ModelPart& part) const;
  /// Broadcasts units from the stage that has each.
  void gather_stages(const Gathered& gathered);

  const RankModel& rank_;
  std::vector<Gathered> gathered_;
  std::optional<RolloutFile> file_;
  std::optional<ops::Transformer> model_;
};

}  // namespace neap::train
