// The training half of a PPO step, from experience with advantages.
//
// Ranks     each rank runs its share of every mini-batch. Gradients are summed before each
//           optimizer step, and losses are divided by counts of the whole mini-batch. So the number
//           of ranks changes only the order of sums.
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <cstdint>

#include "rlhf/experience/experience.h"
#include "rlhf/experience/ppo_models.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

/// Phase "train_critic", if the job has a critic, then phase "train_actor".
void update_models(Context& context, PpoModels& models, const Experience& e, std::int64_t step,
                   Metrics& metrics);

}  // namespace neap::rlhf
