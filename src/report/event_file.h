// TensorBoard event files: scalars by step, in the format that TensorBoard reads.
//
// A file is a sequence of records. A record has its length (8 bytes, little endian), the masked
// CRC-32C of the length, the bytes of an `Event` message, and their masked CRC-32C.
//
// Threads   one owner at a time.
//
// Cost      one write call per step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "report/append_file.h"

namespace neap::report {

/// CRC-32C (Castagnoli) of `bytes`, and the rotated form stored in event files.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes);

/// Framed records: the first one of a file, and one with a step's scalars.
[[nodiscard]] std::string version_record(double wall_seconds);
[[nodiscard]] std::string scalars_record(double wall_seconds, std::uint64_t step,
                                         const std::map<std::string, double>& scalars);

class EventFile {
 public:
  /// Appends to the newest event file of `folder`, which is created if it is missing. With
  /// `resume_step`, records of later steps and incomplete tails are removed from all event files
  /// there. With `resume_step` -1 the files themselves are removed. Without it, the folder must not
  /// have event files (kAlreadyExists).
  [[nodiscard]] static Result<EventFile> open(const std::filesystem::path& folder,
                                              std::optional<std::int64_t> resume_step);
  Status append(double wall_seconds, std::uint64_t step,
                const std::map<std::string, double>& scalars);
  Status sync() { return file_.sync(); }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  explicit EventFile(AppendFile file) : file_(std::move(file)) {}
  AppendFile file_;
};

}  // namespace neap::report
