// A file that grows by whole records. Each record is written by one call, so a killed process
// leaves at most one incomplete record at the end.
//
// Threads   one owner at a time.
//
// Failure   Status with the path and the system's reason. After a failed write (disk full) the file
//           is truncated to its last whole record. Records that could not be written are kept and
//           retried with the next one.
//
// If another program removes or replaces the file, it is created or opened again in the same
// folder, even if the folder was moved.
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
  /// Maximum bytes of kept records while the disk is full.
  static constexpr std::size_t kMostKept = 16u << 20;

  /// Opens the file for appending and creates it if it is missing.
  [[nodiscard]] static Result<AppendFile> open(const std::filesystem::path& path);

  /// Fails if the record could not be written; then it is not kept either.
  Status write(std::string_view record);
  /// Keeps a record that cannot be written now, and logs a warning for the first one. Fails if more
  /// than kMostKept bytes would be kept.
  Status write_or_keep(std::string_view record);
  /// Writes the kept records and syncs to the disk, so that they survive a power failure.
  Status sync();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Call after another function has moved the file, which stays open.
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

/// Logs that a reader skips an incomplete last line of `bytes` bytes. `where` is the file, with the
/// line number if known.
void warn_of_torn_line(std::string_view where, std::size_t bytes);

}  // namespace neap::report
