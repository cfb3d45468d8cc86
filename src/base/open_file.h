// Opens a file to read it, without waiting for a program that may never write.
#pragma once

#include <chrono>
#include <filesystem>

#include "base/descriptor.h"
#include "base/status.h"

namespace neap {

inline constexpr std::chrono::milliseconds kPipePatience{5000};

/// A file, a device or a pipe. A pipe with a name, into which nobody writes within `patience`, is
/// kInvalidArgument; pipes without one, as a shell's `<(...)` makes, have a program that writes.
/// Fails with the path and the system's reason.
[[nodiscard]] Result<Descriptor> open_file(const std::filesystem::path& path,
                                           std::chrono::milliseconds patience = kPipePatience);

}  // namespace neap
