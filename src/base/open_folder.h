// Paths through an open folder. They stay correct when the folder is moved or renamed.
//
// Threads   a stateless function.
#pragma once

#include <filesystem>

namespace neap {

/// Returns /proc/self/fd/N of the open folder, or `path` without /proc. Valid while the
/// descriptor is open.
[[nodiscard]] std::filesystem::path path_through(int directory, const std::filesystem::path& path);

}  // namespace neap
