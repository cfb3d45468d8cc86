// Identifies an open file, so that processes can tell whether they have the same file open.
#pragma once

#include <string>

#include "base/status.h"

namespace neap {

/// Equal texts mean the same file on the same kernel, so that the processes share the page cache of
/// the file. Texts have no line breaks. Fails if the system does not say which kernel runs.
[[nodiscard]] Result<std::string> file_identity(int fd);

}  // namespace neap
