// Changes of a job that lower its memory, each in levels of growing effect.
//
// Threads   values; functions without state.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "spec/job.h"
#include "spec/job_change.h"

namespace neap::plan {

struct Tunable {
  std::string_view effect;     ///< what it costs, for people
  int weight = 1;              ///< penalty of a level
  bool keeps_training = true;  ///< the result is the same but for rounding
  /// What takes a job to a level, counted from 1; empty: there is no such level.
  std::function<std::vector<spec::JobChange>(const spec::Job&, int level)> changes;
};

[[nodiscard]] Tunable training_micro_batches();
[[nodiscard]] Tunable inference_micro_batches();
/// Sequences that are decoded together.
[[nodiscard]] Tunable rollout_batches();
/// Ranks that divide a sliced model where it generates: at each level the next number that divides all ranks.
[[nodiscard]] Tunable divided_generation();
/// Of a job, those above and: settings that bind the plan left to it, a reference that runs once, full recomputation, LoRA, shorter responses.
[[nodiscard]] std::vector<Tunable> tunables(const spec::Job& job);
/// Those that change the training. Adapters not where sft starts from random weights.
[[nodiscard]] std::vector<Tunable> other_trainings(const spec::Job& job);

/// What a change costs that one of these makes, or a plan; for people. Empty for any other change.
[[nodiscard]] std::string_view effect_of(const spec::JobChange& change);

}  // namespace neap::plan
