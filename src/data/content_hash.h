// Hashes of files' contents (base/hash.h), used as names in a cache.
//
// Threads   stateless functions.
//
// Failure   Status with the path.
//
// Cost      the disk's speed; 10 GB/s from the page cache.
#pragma once

#include <filesystem>
#include <string>

#include "base/hash.h"
#include "base/status.h"

namespace neap::data {

[[nodiscard]] Result<std::string> hash_of_file(const std::filesystem::path& file);

/// Identifies a version of a file: device, inode, size and the times of its last changes.
struct FileStamp {
  std::string text;
  /// The file changed so recently that another change might not alter the stamp.
  bool fresh = false;
};
[[nodiscard]] Result<FileStamp> stamp_of(const std::filesystem::path& file);
/// kBusy if the file's stamp has changed.
[[nodiscard]] Status check_unchanged(const std::filesystem::path& file, const FileStamp& stamp);

}  // namespace neap::data
