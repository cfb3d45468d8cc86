// JSON lines that each belong to a step: metrics.jsonl, phases.jsonl.
//
// Every line is an object with an integer "step". A run that resumes cuts the log at the step that
// it resumes from, so that no step occurs twice.
//
// Threads   one owner at a time.
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
  /// With `resume_step`, lines of later steps, and an incomplete last line, are removed before
  /// appending; -1 removes all. Without, the file must be new or empty: kAlreadyExists otherwise.
  [[nodiscard]] static Result<StepLog> open(const std::filesystem::path& path,
                                            std::optional<std::int64_t> resume_step);
  /// Writes {"step": step, ...fields} as one line. Numbers that JSON lacks (NaN, infinities) become
  /// null.
  Status append(std::uint64_t step, const Json& fields);
  Status sync() { return file_.sync(); }

  /// Every line of the file. An incomplete last line is left out with a warning; anything else that is not an object with
  /// a step is an error with its line number.
  [[nodiscard]] static Result<std::vector<Json>> read(const std::filesystem::path& path);
  /// As read(), a line at a time: in memory for one.
  [[nodiscard]] static Status for_each(const std::filesystem::path& path,
                                       const std::function<void(const Json&)>& visit);

 private:
  explicit StepLog(AppendFile file) : file_(std::move(file)) {}
  AppendFile file_;
};

}  // namespace neap::report
