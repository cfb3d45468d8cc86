// Changes of a job that lower its memory, each in levels of increasing effect.
//
// Threads   values; stateless functions.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "spec/job/job.h"
#include "spec/recipe/job_change.h"

namespace neap::plan {

struct Tunable {
  std::string_view effect;     ///< what it costs, in words
  int weight = 1;              ///< penalty per level
  bool keeps_training = true;  ///< the result is the same except for rounding
  /// The changes that lead a job to a level, counted from 1; empty: the level does not exist.
  std::function<std::vector<spec::JobChange>(const spec::Job&, int level)> changes;
};

/// The changes that let a plan offload tags between phases; empty: it may already.
[[nodiscard]] std::vector<spec::JobChange> free_residency(const spec::Job& job);

[[nodiscard]] Tunable training_micro_batches();
[[nodiscard]] Tunable inference_micro_batches();
/// Sequences that are decoded together.
[[nodiscard]] Tunable rollout_batches();
/// Pages of the KV cache: each level has half as many, but at least those of one sequence.
[[nodiscard]] Tunable cache_pages();
[[nodiscard]] Tunable prefill_passes();
/// Tensor-parallel size of rollouts for ZeRO-3 models. Each level is the next number that divides
/// all ranks.
[[nodiscard]] Tunable divided_generation();
/// For a job: those above; leaving fixed settings to the plan; a reference that runs once; full
/// recomputation; LoRA; shorter responses.
[[nodiscard]] std::vector<Tunable> tunables(const spec::Job& job);
/// Tunables that change the training. Adapters are excluded if sft starts from random weights.
[[nodiscard]] std::vector<Tunable> other_trainings(const spec::Job& job);

/// The cost, in words, of a change by one of these or by a plan. Empty for any other change.
[[nodiscard]] std::string_view effect_of(const spec::JobChange& change);

}  // namespace neap::plan
