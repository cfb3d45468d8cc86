// Runs Python code of Neap with the python3 on PATH.
//
// It imports what `python3` imports for the user, including packages of PYTHONPATH and of the
// user's site folder. It never imports from the working folder, where a json.py or torch/ may be
// unrelated.
//
// Threads   any, as long as none changes the environment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/child_process.h"

namespace neap {

/// Builds the command `python3 -c CODE ARGUMENTS`. `interpreter` is another program or a wrapper,
/// with its arguments. `environment` has entries NAME=VALUE; nullopt: this process's environment.
[[nodiscard]] ChildProcess::Program python_program(
    std::string_view code, const std::vector<std::string>& arguments,
    std::vector<std::string> interpreter = {"python3"},
    std::optional<std::vector<std::string>> environment = std::nullopt);

}  // namespace neap
