// The actions of a job's generations as a plan counts them: of the longest prompts and responses, and
// smaller ones as sequences end.
//
// Cost   of a long generation a few dozen decoding steps are visited.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "spec/recipe.h"
#include "step/generation_schedule.h"
#include "step/sampling.h"

namespace neap::plan {

/// Actions that are counted together; nothing stays on the device from one pass to the next.
struct GenerationPass {
  std::vector<step::GenerationAction> actions;
  step::SamplingOptions sampling;
  double times = 1;  ///< that their work counts
};

struct GenerationVisitor {
  std::function<void(const GenerationPass&)> visit;
  /// Runs a body whose passes count for memory alone, or does not (CountingOps::aside).
  std::function<void(const std::function<void()>&)> aside;
};

/// The passes of a phase, in order. `most_decode_steps`: of a batch so many, evenly spread, the longest
/// included.
void for_each_generation_pass(const spec::Job& job, const spec::Phase& phase,
                              std::int64_t most_decode_steps, const GenerationVisitor& visitor);

}  // namespace neap::plan
