// Files of JSON lines with steps: metrics.jsonl, phases.jsonl.
//
// Every line is an object with an integer "step". A run that resumes truncates the log at the step
// that it resumes from, so that no step occurs twice.
//
// Threads   one owner at a time.
//
// Cost      one write call per line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "base/json.h"
#include "report/append_file.h"

namespace neap::report {

class StepLog {
 public:
  /// With `resume_step`, removes lines of later steps and an incomplete last line before appending;
  /// -1 removes all lines. Without it, the file must be new or empty (kAlreadyExists).
  [[nodiscard]] static Result<StepLog> open(const std::filesystem::path& path,
                                            std::optional<std::int64_t> resume_step);
  /// Writes {"step": step, ...fields} as one line. NaN and infinities, which JSON lacks, become
  /// null.
  Status append(std::uint64_t step, const Json& fields);
  Status sync() { return file_.sync(); }

  /// Reads every line of the file. An incomplete last line is skipped with a warning. Any other
  /// line that is not an object with a step is an error with its line number.
  [[nodiscard]] static Result<std::vector<Json>> read(const std::filesystem::path& path);
  /// As read(), one line at a time: memory holds a single line.
  [[nodiscard]] static Status for_each(const std::filesystem::path& path,
                                       const std::function<void(const Json&)>& visit);

 private:
  explicit StepLog(AppendFile file) : file_(std::move(file)) {}
  AppendFile file_;
};

}  // namespace neap::report
