// Where the files that come with the program are: libraries that are loaded at run time.
//
// Threads   any.
// Cost      a few stat calls.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap {

/// The running program, without symbolic links.
[[nodiscard]] std::filesystem::path program_file();

/// The folders of Neap's libraries, in the order in which they are searched: the program's own (a
/// copy), ../lib (a build folder) and ../lib/neap (an installation).
[[nodiscard]] std::vector<std::filesystem::path> library_folders();

/// The library `name`, or what the environment variable `variable` names (null: no variable).
/// kNotFound names the folders that were searched.
[[nodiscard]] Result<std::filesystem::path> find_library(std::string_view name,
                                                         const char* variable);

}  // namespace neap
