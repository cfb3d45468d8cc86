// TensorBoard event files: scalars by step, in the framing that TensorBoard reads.
//
// A file is a sequence of records: length (8 bytes, little endian), its masked CRC-32C, the bytes
// of an `Event` message, their masked CRC-32C.
//
// Threads   one owner at a time.
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

/// CRC-32C (Castagnoli) of `bytes`, and the rotated form that event files store.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes);

/// One framed record: the first of a file, and one with a step's scalars.
[[nodiscard]] std::string version_record(double wall_seconds);
[[nodiscard]] std::string scalars_record(double wall_seconds, std::uint64_t step,
                                         const std::map<std::string, double>& scalars);

class EventFile {
 public:
  /// Appends to the newest event file of `folder` (made when missing). With `resume_step`, records
  /// of later steps and an incomplete tail are removed from every event file there, with -1 the
  /// files; without, the folder must hold none (kAlreadyExists).
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
