// A file that grows by whole records, each written by one call, so that a killed process leaves at
// most one torn record at the end.
//
// Threads   one owner at a time.
// Failure   Status with the path and the system's reason; after a failed write (disk full) the file
//           is cut back to its last whole record. Records that could not be written are kept and tried
//           again with the next one.
//
// A file that somebody removes or replaces is made or opened again in the same folder, wherever that was moved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "base/status.h"

namespace neap::report {

class AppendFile {
 public:
  /// Bytes of records that are kept while the disk has no room.
  static constexpr std::size_t kMostKept = 16u << 20;

  /// Opens for appending, making the file when it is not there.
  [[nodiscard]] static Result<AppendFile> open(const std::filesystem::path& path);

  /// Fails where the record is not in the file afterwards; then it is not kept either.
  Status write(std::string_view record);
  /// Keeps a record that cannot be written now, with a warning for the first one. Fails where more than kMostKept
  /// bytes would be kept.
  Status write_or_keep(std::string_view record);
  /// Writes what is kept and syncs to the disk, so that it survives a power cut.
  Status sync();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Somebody has moved the file, which stays open.
  void moved_to(std::filesystem::path path) { path_ = std::move(path); }
  [[nodiscard]] std::uint64_t size() const { return size_; }  ///< bytes of whole records

 private:
  explicit AppendFile(std::filesystem::path path) : path_(std::move(path)) {}
  Status open_file();
  Status follow();
  Status write_now(std::string_view record);

  std::filesystem::path path_;
  Descriptor folder_, file_;
  std::uint64_t size_ = 0;
  std::string kept_;  // whole records that are not in the file yet
};

/// Logs that a reader leaves out a torn last line of `bytes` bytes; `where` is the file, and its number if known.
void warn_of_torn_line(std::string_view where, std::size_t bytes);

}  // namespace neap::report
