// Versions of files' contents, from what the file system says of them: one definition of "the file
// has not changed".
//
// Threads   values and stateless functions.
// Failure   kNotFound or kIo with the file's name.
// Cost      one system call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace neap {

struct FileVersion {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t written_ns = 0;  ///< last write
  std::int64_t changed_ns = 0;  ///< last change of contents, name, owner, ...

  /// Whether an open file still has the contents that it had at `before`. Its name is not compared:
  /// another file may take it. A write of the same size within a tick of the file system's clock is
  /// not found.
  [[nodiscard]] bool has_contents_of(const FileVersion& before) const;
  /// Whether the file changed so recently that another change might not alter the version.
  [[nodiscard]] bool is_fresh() const;
  /// Names the version in a cache.
  [[nodiscard]] std::string text() const;
  /// Whether a path has the same file, and nothing of it changed.
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};
[[nodiscard]] Result<FileVersion> version_of(const std::filesystem::path& file);
/// The version of an open file. Messages contain `name`.
[[nodiscard]] Result<FileVersion> version_of(int fd, const std::filesystem::path& name);

}  // namespace neap
