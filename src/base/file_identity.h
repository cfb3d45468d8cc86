// Which file a process has open: the one that another process has, or one that only looks the same.
#pragma once

#include <string>

#include "base/status.h"

namespace neap {

/// Equal texts: one file of one kernel, so that the processes have one cache of the file's pages. Texts have no
/// line breaks. Fails where the system does not say which kernel runs.
[[nodiscard]] Result<std::string> file_identity(int fd);

}  // namespace neap
