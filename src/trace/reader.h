// Reads any supported trace file into a Recording: PyTorch's memory snapshots (pickles, plain or
// compressed with gzip or zstd) and Neap's own format.
//
// Threads   free functions; any thread.
//
// Failure   kNotFound, kIo; kUnsupported for other kinds of files; kCorrupt with the byte at which
//           the file violates its format; kOutOfHostMemory over the memory limit. Nothing in a file
//           is executed. Memory, time and stack are bounded for every file.
//
// Cost      several hundred MB per second for PyTorch snapshots; memory at most twice the
//           decompressed file.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "base/status.h"
#include "trace/recording.h"

namespace neap::trace {

struct ReadOptions {
  /// Shows a progress bar on stderr for large files.
  bool progress = false;
  /// Limit of the memory for reading and the Recording; zero: half of the machine's memory.
  Bytes memory_limit;
};

[[nodiscard]] Result<Recording> read(const std::filesystem::path& path,
                                     const ReadOptions& options = {});
/// As read(), for bytes in memory. `name` replaces the path in messages.
[[nodiscard]] Result<Recording> read_bytes(std::span<const std::uint8_t> bytes,
                                           std::string_view name, const ReadOptions& options = {});

}  // namespace neap::trace
