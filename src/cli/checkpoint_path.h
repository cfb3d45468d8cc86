// Where a checkpoint's model is.
//
// Threads   functions without state.   Failure   Error.
#pragma once

#include <filesystem>

namespace neap::cli {

/// The folder with config.json and weights: `path` itself, or the actor in a checkpoint or in the
/// newest one of a run's output.
[[nodiscard]] std::filesystem::path model_folder(const std::filesystem::path& path);

}  // namespace neap::cli
