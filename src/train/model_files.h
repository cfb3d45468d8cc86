// The folders of a model: where its weights and adapters come from, and checkpoints of them.
//
// Ranks     every rank loads, saves and restores together. All read the same folder. Each writes
//           its own tensors, and the first writes the other files. The folder has the whole model.
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "train/model_optimizer.h"
#include "train/rank_model.h"
#include "train/saved_files.h"
#include "train/unit_store.h"
#include "weights/checkpoint.h"
#include "weights/model_reader.h"

namespace neap::train {

class ModelFiles {
 public:
  /// Null: the model has no adapters, or is frozen. All of them must outlive it.
  ModelFiles(const RankModel& model, UnitStore& base, UnitStore* adapters,
             ModelOptimizer* optimizer)
      : rank_(model),
        groups_(model.groups),
        spec_(model.spec),
        base_(base),
        adapters_(adapters),
        optimizer_(optimizer) {}

  // ModelWorker's:
  void load();
  void save(const std::filesystem::path& folder, const weights::SaveOptions& options,
            SavedFiles& files);
  void restore(const std::filesystem::path& folder);

 private:
  /// Makes everything that save and load touch resident. Without `weights`, the base is not
  /// included.
  [[nodiscard]] std::unique_ptr<bridge::Runtime::Scope> hold(bool weights = true);
  /// Otherwise checkpoints have the adapters alone.
  [[nodiscard]] bool saves_weights() const {
    return adapters_ == nullptr || spec_.save_base || base_folder_.empty();
  }
  /// The folder's weights, or random ones.
  [[nodiscard]] UnitFill weight_source();
  [[nodiscard]] UnitFill adapter_source(const std::filesystem::path& folder) const;
  /// Loads the adapters to continue, and returns their source, or initialises them at random. A
  /// scalar head that is trained with them starts as the base's.
  [[nodiscard]] UnitFill start_adapters(const UnitFill& base);
  /// Sets the members that describe the adapters' base. load() and restore() call it, because the
  /// folder may be replaced or removed before a checkpoint.
  void note_base();
  void write_weights(const std::filesystem::path& folder, const weights::SaveOptions& options,
                     SavedFiles& saved);
  void write_adapters(const std::filesystem::path& folder, weights::Sync sync, SavedFiles& saved);
  /// Every rank writes and reads its own states.
  void write_states(const std::filesystem::path& folder, SavedFiles& saved) const;
  void restore_states(const std::filesystem::path& folder) const;
  /// Runs `work` on the first rank. A failure is thrown on every rank.
  void by_first(const std::function<void()>& work) const;

  const RankModel& rank_;
  const parallel::Groups& groups_;
  const WorkerSpec& spec_;
  UnitStore& base_;
  UnitStore* adapters_;
  ModelOptimizer* optimizer_;
  // With LoRA: the folder that holds the base; empty if the base has several sources. Then its
  // fingerprint.
  std::filesystem::path base_folder_;
  std::string base_fingerprint_;
};

}  // namespace neap::train
