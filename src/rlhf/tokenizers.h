// Whether the models of a job can read each other's tokens.
#pragma once

#include "spec/job.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::rlhf {

/// Fails when a model's vocabulary is smaller than the tokenizer's, or when the reference, critic or
/// reward model comes with a tokenizer that gives other ids than the actor's: they all read the ids
/// that the actor wrote. A folder without a tokenizer is taken to use the actor's.
void check_tokenizers(const spec::Job& job, const text::Tokenizer& actor);

}  // namespace neap::rlhf
