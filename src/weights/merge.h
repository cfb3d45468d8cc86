// Merges a model and its adapter into one folder that does not need PEFT.
//
// Threads   one at a time; reading and writing use libtorch's number of threads.
//
// Failure   neap::Error; a folder that already has a model is not changed.
//
// Cost      one pass over the bytes; memory for one unit (embedding, layer or head) in float32.
#pragma once

#include <filesystem>

#include "spec/model/adapter_config.h"
#include "weights/checkpoint.h"

namespace neap::weights {

/// Writes the model of `files` with the adapter added to the weights. If options.dtype is unset,
/// uses the dtype of the base's file, or bfloat16 if that has 8 bits. Companions and origin are the
/// model's own.
void merge_adapter(const spec::ModelFiles& files, const std::filesystem::path& to,
                   SaveOptions options = {});

}  // namespace neap::weights
