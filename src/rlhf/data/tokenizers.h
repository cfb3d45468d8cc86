// Checks that the models of a job use the same token ids.
//
// Threads   a stateless function.
// Failure   Error naming the model.
#pragma once

#include "spec/job/job.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::rlhf {

/// All models read the token ids that the actor writes. Fails if a model's vocabulary is smaller
/// than the tokenizer's. Also fails if the tokenizer of the reference, critic or reward model maps
/// to other ids than the actor's. A folder without a tokenizer is assumed to use the actor's.
void check_tokenizers(const spec::Job& job, const text::Tokenizer& actor);

}  // namespace neap::rlhf
