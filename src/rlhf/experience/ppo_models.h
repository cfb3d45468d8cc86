// The models of PPO and GRPO: the actor, and optionally a reward model, a reference and a critic.
//
// Threads   one at a time.
// Failure   Error.
// Memory    that of a train::ModelWorker for each model.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "rlhf/experience/experience.h"
#include "rlhf/trainer/trainer.h"
#include "spec/recipe/recipe.h"
#include "train/model_worker.h"
#include "train/sequences.h"

namespace neap::rlhf {

class PpoModels {
 public:
  /// `context` must outlive it.
  explicit PpoModels(Context& context);

  [[nodiscard]] train::ModelWorker& actor() { return actor_; }
  /// Null if the job has none.
  [[nodiscard]] train::ModelWorker* reward() { return reward_ ? &*reward_ : nullptr; }
  [[nodiscard]] train::ModelWorker* critic() { return critic_ ? &*critic_ : nullptr; }

  /// Load and save as Trainer does: load all models, save those that are trained.
  void load();
  void save(const std::filesystem::path& folder, train::SavedFiles& files);
  void restore(const std::filesystem::path& folder);

  /// Adds the log-probabilities of the actor before its update, with `entropy`, and of the
  /// reference if there is one. If the job bypasses the actor's pass, those of sampling are used.
  void add_log_probs(Experience& e, Metrics& metrics);
  /// The reward model's scores (B,); undefined if there is none.
  [[nodiscard]] at::Tensor scores(const train::Sequences& sequences, spec::PhaseId phase);

 private:
  Context& context_;
  train::ModelWorker actor_;
  std::optional<train::ModelWorker> reward_, reference_, critic_;
};

}  // namespace neap::rlhf
