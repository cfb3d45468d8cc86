// A model and its adapter as one folder that needs no PEFT.
//
// Threads   one at a time; reading and writing use libtorch's number of threads.
// Failure   neap::Error; a folder that holds a model already is not touched.
// Cost      one pass over the bytes; in memory is one unit (embedding, block, head) in float32.
#pragma once

#include <filesystem>

#include "spec/adapter_config.h"
#include "weights/checkpoint.h"

namespace neap::weights {

/// Writes `files` with the adapter added to the weights. options.dtype unset: the type of the base's
/// file, bfloat16 for one of 8 bits. Companions and origin are the model's own.
void merge_adapter(const spec::ModelFiles& files, const std::filesystem::path& to,
                   SaveOptions options = {});

}  // namespace neap::weights
