// The models of PPO and GRPO: the actor, and a reward model, a reference and a critic where the job has them.
//
// Threads   one at a time.   Failure   Error.
// Memory    as of a train::ModelWorker each.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "rlhf/experience.h"
#include "rlhf/trainer.h"
#include "spec/recipe.h"
#include "train/model_worker.h"
#include "train/sequences.h"

namespace neap::rlhf {

class PpoModels {
 public:
  /// `context` outlives it.
  explicit PpoModels(Context& context);

  [[nodiscard]] train::ModelWorker& actor() { return actor_; }
  /// Null without one.
  [[nodiscard]] train::ModelWorker* reward() { return reward_ ? &*reward_ : nullptr; }
  [[nodiscard]] train::ModelWorker* critic() { return critic_ ? &*critic_ : nullptr; }

  /// As of a Trainer: all of them, and those that are trained.
  void load();
  void save(const std::filesystem::path& folder);
  void restore(const std::filesystem::path& folder);

  /// Of the actor before its update and of the reference, where the job has one; `entropy` with the former. Those of
  /// sampling stand for the actor's where the job bypasses its pass.
  void add_log_probs(Experience& e, Metrics& metrics);
  /// By the reward model, (B,); undefined without one.
  [[nodiscard]] at::Tensor scores(const train::Sequences& sequences, spec::PhaseId phase);

 private:
  Context& context_;
  train::ModelWorker actor_;
  std::optional<train::ModelWorker> reward_, reference_, critic_;
};

}  // namespace neap::rlhf
