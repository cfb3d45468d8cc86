// Hashes of files' contents (base/hash.h), as names in a cache.
//
// Threads   functions without state.   Failure   Status with the path.
// Cost      the disk's speed; 10 GB/s from the page cache.
#pragma once

#include <filesystem>
#include <string>

#include "base/hash.h"
#include "base/status.h"

namespace neap::data {

[[nodiscard]] Result<std::string> hash_of_file(const std::filesystem::path& file);

/// What changes when a file's contents do: device, inode, size and the times of its last changes.
struct FileStamp {
  std::string text;
  /// Changed so recently that a further change may leave the stamp as it is.
  bool fresh = false;
};
[[nodiscard]] Result<FileStamp> stamp_of(const std::filesystem::path& file);
/// kBusy where the file's stamp is another one now.
[[nodiscard]] Status check_unchanged(const std::filesystem::path& file, const FileStamp& stamp);

}  // namespace neap::data
