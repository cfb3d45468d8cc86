// Saves a Recording in Neap's own format: a tenth of a snapshot's size and several times faster to
// read.
//
// Threads   free function; the Recording is only read.
//
// Failure   the file appears as a whole or not at all: it is written under a temporary name and
//           renamed.
#pragma once

#include <filesystem>

#include "base/status.h"
#include "trace/recording.h"

namespace neap::trace {

/// Reading `path` returns an equal `recording`, except that `truncated` becomes a warning.
Status write(const std::filesystem::path& path, const Recording& recording);

}  // namespace neap::trace
