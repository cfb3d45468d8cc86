// Opens files for reading without waiting for a program that may never write. All of Neap's input
// files are opened here.
#pragma once

#include <chrono>
#include <filesystem>

#include "base/descriptor.h"
#include "base/read_limits.h"
#include "base/status.h"

namespace neap {

inline constexpr std::chrono::milliseconds kPipePatience{5000};

/// Opens a file, a device or a pipe. A named pipe without a writer within `patience` is
/// kInvalidArgument. An unnamed pipe, as from a shell's `<(...)`, always has a writer. Fails with
/// the path and the system's reason.
[[nodiscard]] Result<Descriptor> open_file(const std::filesystem::path& path,
                                           std::chrono::milliseconds patience = kPipePatience);
/// Opens a file whose parts are read in any order. A folder, a device or a pipe is
/// kInvalidArgument, as is a file over `limits.file`.
[[nodiscard]] Result<Descriptor> open_regular_file(const std::filesystem::path& path,
                                                   const ReadLimits& limits = {});

/// kCorrupt if nearly all of a file that is read whole was never written: reading a hole of 1 TiB
/// takes minutes, and no text has one.
[[nodiscard]] Status check_holes(int fd, const std::filesystem::path& path);

}  // namespace neap
