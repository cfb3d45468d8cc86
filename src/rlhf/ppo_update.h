// The learning half of a PPO step, from experience with advantages.
//
// Ranks     each runs its share of every mini-batch; gradients are added before each optimizer step,
//           and losses are divided by the whole mini-batch's counts, so that the number of ranks
//           changes sums' order and nothing else.
// Threads   one at a time.   Failure   Error.
#pragma once

#include <cstdint>

#include "rlhf/experience.h"
#include "rlhf/trainer.h"

namespace neap::rlhf {

/// Phase "train_critic".
void train_critic(Context& context, train::ModelWorker& critic, const Experience& e,
                  std::int64_t step, Metrics& metrics);
/// Phase "train_actor".
void train_actor(Context& context, train::ModelWorker& actor, const Experience& e,
                 std::int64_t step, Metrics& metrics);

}  // namespace neap::rlhf
