// Metrics of the whole batch's experience: lengths, scores, entropy and values, with verl's names.
//
// Threads   a stateless function.
// Failure   c10::Error from libtorch.
#pragma once

#include "rlhf/experience/experience.h"
#include "rlhf/trainer/trainer.h"
#include "spec/job/job.h"

namespace neap::rlhf {

void describe_experience(const spec::Job& job, const Experience& e, Metrics& metrics);

}  // namespace neap::rlhf
