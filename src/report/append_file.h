// A file that grows by whole records, each written by one call, so that a killed process leaves at
// most one torn record at the end.
//
// Threads   one owner at a time.
// Failure   Status with the path and the system's reason; after a failed write (disk full) the file
//           is cut back to its last whole record, and later writes may succeed again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace neap::report {

class AppendFile {
 public:
  /// Opens for appending, making the file when it is not there.
  [[nodiscard]] static Result<AppendFile> open(const std::filesystem::path& path);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  Status write(std::string_view record);
  /// Syncs to the disk, so that it survives a power cut.
  Status sync();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Somebody has moved the file, which stays open.
  void moved_to(std::filesystem::path path) { path_ = std::move(path); }
  [[nodiscard]] std::uint64_t size() const { return size_; }  ///< bytes of whole records

 private:
  AppendFile(std::filesystem::path path, int fd, std::uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

/// Logs that a reader leaves out a torn last line of `bytes` bytes; `where` is the file, and its number if known.
void warn_of_torn_line(std::string_view where, std::size_t bytes);

}  // namespace neap::report
