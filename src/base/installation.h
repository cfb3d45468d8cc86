// Finds installed files of the program: libraries that are loaded at run time.
//
// Threads   any.
// Cost      a few stat calls.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap {

/// Path of the running program, without symbolic links.
[[nodiscard]] std::filesystem::path program_file();

/// Folders of Neap's libraries, in search order: the program's own (a copy), ../lib (a build
/// folder) and ../lib/neap (an installation).
[[nodiscard]] std::vector<std::filesystem::path> library_folders();

/// Finds the library `name`. The environment variable `variable` can name another file (null: no
/// variable). kNotFound names the folders that were searched.
[[nodiscard]] Result<std::filesystem::path> find_library(std::string_view name,
                                                         const char* variable);

}  // namespace neap
