// Opens a file for reading without waiting for a program that may never write.
#pragma once

#include <chrono>
#include <filesystem>

#include "base/descriptor.h"
#include "base/status.h"

namespace neap {

inline constexpr std::chrono::milliseconds kPipePatience{5000};

/// Opens a file, a device or a pipe. A named pipe without a writer within `patience` is
/// kInvalidArgument. An unnamed pipe, as from a shell's `<(...)`, always has a writer. Fails with
/// the path and the system's reason.
[[nodiscard]] Result<Descriptor> open_file(const std::filesystem::path& path,
                                           std::chrono::milliseconds patience = kPipePatience);

}  // namespace neap
