// A program of Neap's for the python3 on PATH.
//
// It imports what `python3` imports for the user, packages of PYTHONPATH and of the user's site folder included,
// but nothing from the folder that the process was started in: a json.py or a torch/ there is not meant.
// Threads   any, as long as none changes the environment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/child_process.h"

namespace neap {

/// `python3 -c CODE ARGUMENTS`. `interpreter` is another program or a wrapper, with its arguments. `environment` has
/// NAME=VALUE; nullopt: this process's.
[[nodiscard]] ChildProcess::Program python_program(
    std::string_view code, const std::vector<std::string>& arguments,
    std::vector<std::string> interpreter = {"python3"},
    std::optional<std::vector<std::string>> environment = std::nullopt);

}  // namespace neap
