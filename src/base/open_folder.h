// Paths through an open folder, which stay right when the folder is moved or renamed.
//
// Threads   a function without state.
#pragma once

#include <filesystem>

namespace neap {

/// /proc/self/fd/N of the open folder; `path` where there is no /proc. Valid while the descriptor is open.
[[nodiscard]] std::filesystem::path path_through(int directory, const std::filesystem::path& path);

}  // namespace neap
