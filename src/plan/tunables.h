// Changes of a job that lower its memory, each in steps of growing effect.
//
// Threads   values; functions without state.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/job.h"

namespace neap::plan {

/// Level 0 is the job as it is.
struct Tunable {
  std::string_view effect;     ///< what it costs, for people
  int weight = 1;              ///< penalty of a step
  bool keeps_training = true;  ///< the result is the same but for rounding
  /// Changes the job to a level and adds the overrides that do it; false: there is no such level.
  std::function<bool(spec::Job&, std::vector<std::string>&, int level)> turn;
};

[[nodiscard]] Tunable training_micro_batches();
[[nodiscard]] Tunable inference_micro_batches();
/// Sequences that are decoded together.
[[nodiscard]] Tunable rollout_batches();
/// Of a job, those above and: settings that bind the plan left to it, a reference that runs once, full recomputation, LoRA, shorter responses.
[[nodiscard]] std::vector<Tunable> tunables(const spec::Job& job);
/// Those that change the training. Adapters not where sft starts from random weights.
[[nodiscard]] std::vector<Tunable> other_trainings(const spec::Job& job);

/// What an override of these, "key.path=value", or another one that a plan makes costs, for people; empty
/// for what none makes.
[[nodiscard]] std::string_view effect_of(std::string_view assignment);

}  // namespace neap::plan
