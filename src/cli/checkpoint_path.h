// Finds the model of a checkpoint.
//
// Threads   stateless functions.
//
// Failure   Error.
#pragma once

#include <filesystem>

#include "spec/model/adapter_config.h"

namespace neap::cli {

inline constexpr const char* kAdapterHelp =
    "folder of a LoRA adapter in PEFT's form that is added to CHECKPOINT's weights";

/// Finds the folder with config.json and weights, or with an adapter and the name of its base.
/// `path` can be that folder, a checkpoint (its actor), or a run's output (its newest checkpoint).
/// `adapter`, if given, replaces the folder's own adapter.
[[nodiscard]] spec::ModelFiles model_files(const std::filesystem::path& path,
                                           const std::filesystem::path& adapter);

}  // namespace neap::cli
