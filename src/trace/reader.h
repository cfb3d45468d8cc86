// Reads any trace file that Neap knows into a Recording: PyTorch's memory snapshots (pickles, plain
// or packed with gzip or zstd) and Neap's own format.
//
// Threads   free functions; any thread.
// Failure   kNotFound, kIo; kUnsupported for a file of another kind; kCorrupt with the byte at which
//           the file breaks its format; kOutOfHostMemory over the memory limit. Nothing in a file
//           is executed, and no file takes unbounded memory, time or stack.
// Cost      PyTorch snapshots at several hundred MB a second; memory at most twice the unpacked
//           file.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "base/status.h"
#include "trace/recording.h"

namespace neap::trace {

struct ReadOptions {
  /// Shows a progress bar on stderr while reading files large enough to take time.
  bool progress = false;
  /// The Recording and all that is needed to make it; zero means half of the machine's memory.
  Bytes memory_limit;
};

[[nodiscard]] Result<Recording> read(const std::filesystem::path& path,
                                     const ReadOptions& options = {});
/// The same over bytes in memory; `name` stands for the path in messages.
[[nodiscard]] Result<Recording> read_bytes(std::span<const std::uint8_t> bytes,
                                           std::string_view name, const ReadOptions& options = {});

}  // namespace neap::trace
