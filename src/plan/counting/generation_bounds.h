// The actions of a job's generations as a plan counts them: with the longest prompts and responses,
// and with fewer as sequences end.
//
// Threads   one.
// Cost      a few dozen decoding steps for a long generation.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "spec/recipe/recipe.h"
#include "step/generation/generation_schedule.h"
#include "step/generation/sampling.h"

namespace neap::plan {

/// Actions that are counted together. No memory is kept between passes.
struct GenerationPass {
  std::vector<step::GenerationAction> actions;
  step::SamplingOptions sampling;
  double times = 1;  ///< factor of their work
};

struct GenerationVisitor {
  std::function<void(const GenerationPass&)> visit;
  /// Runs a body whose passes count only for memory, or skips it (CountingOps::aside).
  std::function<void(const std::function<void()>&)> aside;
};

/// The passes of a phase on a GPU or the host, in order. Per batch, `most_decode_steps` are
/// counted: evenly spread, including the longest.
void for_each_generation_pass(const spec::Job& job, const spec::Phase& phase, bool cuda,
                              std::int64_t most_decode_steps, const GenerationVisitor& visitor);

}  // namespace neap::plan
