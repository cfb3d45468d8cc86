// Where the hook library lies: for commands that load it or preload it.
#pragma once

#include <string>

#include "base/status.h"

namespace neap::cli {

/// Beside the binary, in ../lib, or where NEAP_HOOK_LIBRARY says. kNotFound says where it was looked for.
[[nodiscard]] Result<std::string> find_hook_library();

}  // namespace neap::cli
