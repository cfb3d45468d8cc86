// One model of the job (actor, critic, reference, reward) in the regions of the plan: weights, and
// gradients and optimizer states if it is trained.
//
// Tags      ROLE.weights, ROLE.grads, ROLE.optimizer. Also ROLE.unit_grads with sharded gradients,
//           ROLE.adapter with LoRA, ROLE.prefetch with offloaded or sharded weights, and
//           ROLE.rollout_weights if rollouts need separate weights.
// Residency The caller opens a phase, or holds the tags, before it touches contents.
// Ranks     every rank loads, saves and restores together. With tensor parallelism each rank has
//           its shard.
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "ops/stage_links.h"
#include "ops/transformer.h"
#include "train/model_files.h"
#include "train/model_generator.h"
#include "train/model_optimizer.h"
#include "train/rank_model.h"
#include "train/unit_store.h"

namespace neap::train {

class ModelWorker {
 public:
  /// Creates views of the plan's regions without touching contents. `runtime` and `groups` must
  /// outlive it.
  ModelWorker(bridge::Runtime& runtime, const parallel::Groups& groups, WorkerSpec spec);

  [[nodiscard]] ops::Transformer& model() { return *model_; }
  /// The weights without the adapter; model() for a model without an adapter.
  [[nodiscard]] ops::Transformer& base() { return base_ ? *base_ : *model_; }
  /// The model for rollouts: model(), or a model over the rollout weights.
  [[nodiscard]] ops::Transformer& generator() { return generator_ ? generator_->model() : *model_; }
  /// Updates generator() with the trained weights. Every rank calls it, in a phase that gathers
  /// weights.
  void gather_generator() {
    if (generator_) generator_->gather();
  }
  /// Writes generator()'s weights to its file, and reads them from it.
  void store_generator() { generator_.value().file().store(); }
  void load_generator() { generator_.value().file().load(); }
  [[nodiscard]] Optimizer& optimizer() { return optimizer_->optimizer(); }
  [[nodiscard]] const WorkerSpec& spec() const { return rank_.spec; }
  [[nodiscard]] const spec::Architecture& shape() const { return rank_.spec.shape; }

  /// For an update: calls visit(unit) for every trained unit, in order, while its tensors are on
  /// the device. With offloaded states it visits parts of units (step/units/update_parts.h).
  void for_each_part(const std::function<void(const OptimizerUnit&)>& visit) {
    optimizer_->for_each_part(visit);
  }
  /// All-gathers the weights that other ranks have updated. Every rank calls it after
  /// for_each_part().
  void gather_weights() { optimizer_->gather_weights(); }

  /// Loads weights from the folder. If it has none and all weights are trained, they are random,
  /// from the seed. Optimizer states start at zero. Logs missing and unused tensors. A missing
  /// scalar head is an error unless `init_head` is set.
  void load() { files_->load(); }
  /// Writes weights in Hugging Face's format (config.json, model.safetensors), and
  /// optimizer.safetensors for a trained model. With LoRA it writes only the adapter, if a folder
  /// holds the base. The tensors are complete when the caller has completed `files`. The caller
  /// that makes the folder a checkpoint syncs it. Only the companions and the shard size of
  /// `options` are used. Fails before writing if ranks have different weights.
  void save(const std::filesystem::path& folder, const weights::SaveOptions& options,
            SavedFiles& files) {
    files_->save(folder, options, files);
  }
  /// Reads back what save() wrote, bitwise. An adapter's base is read from where load() reads it.
  void restore(const std::filesystem::path& folder) { files_->restore(folder); }

 private:
  void make_models();

  RankModel rank_;
  std::unique_ptr<UnitStore> base_units_, adapter_units_;  // null: it has no adapters
  std::optional<ModelOptimizer> optimizer_;                // of a trained model
  std::optional<ModelGenerator> generator_;                // if rollouts have weights of their own
  std::optional<ops::StageLinks> links_;                   // to the other stages
  std::optional<ops::Transformer> model_, base_;
  std::optional<ModelFiles> files_;
};

}  // namespace neap::train
