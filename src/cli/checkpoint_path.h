// Where a checkpoint's model is.
//
// Threads   functions without state.   Failure   Error.
#pragma once

#include <filesystem>

#include "spec/adapter_config.h"

namespace neap::cli {

inline constexpr const char* kAdapterHelp =
    "folder of a LoRA adapter in PEFT's form that is added to CHECKPOINT's weights";

/// The folder with config.json and weights, or with an adapter and the name of its base: `path` itself,
/// or the actor in a checkpoint or in the newest one of a run's output. `adapter`, where there is one,
/// in place of the folder's own.
[[nodiscard]] spec::ModelFiles model_files(const std::filesystem::path& path,
                                           const std::filesystem::path& adapter);

}  // namespace neap::cli
