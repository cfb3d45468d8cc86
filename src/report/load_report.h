// Loads a Report from a path: a run's folder, a Neap trace, or a snapshot of PyTorch's allocator.
//
// Failure   names the file and its defect. Files that a run may lack (plan.json, phases.jsonl) are
//           skipped with a note.
//
// Cost      two passes over the events (one more for segment maps).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace neap::report {

struct LoadOptions {
  std::optional<std::uint16_t> device;  ///< ordinal; unset: the device with the most events
  /// Times of segment maps: "peak", "peak-allocated", "end", "3.2s", "120ms", "#4711" (event).
  /// Empty: at the peak, if the trace has segments.
  std::vector<std::string> at;
  std::filesystem::path replay;  ///< output of `neap replay --json`; empty: none
  std::size_t max_leaves = kMaxLeaves;
  bool progress = false;
};

[[nodiscard]] Result<Report> load_report(const std::filesystem::path& input,
                                         const LoadOptions& options = {});
/// As load_report(), from a trace in memory. `title` names it. Used at a run's end.
[[nodiscard]] Result<Report> make_report(const trace::Recording& recording, std::string title,
                                         std::optional<PlanSummary> plan,
                                         const std::vector<PhaseRecord>& records,
                                         const LoadOptions& options = {});

/// Writes the report page of a run's folder.
[[nodiscard]] Status write_report(const std::filesystem::path& run,
                                  const std::filesystem::path& page);

/// kInvalidArgument with the recording's length if the time is after its end.
[[nodiscard]] Status check_moment(std::string_view option, double seconds, const History& history);

/// Parses "3.2s", "120 ms", "15us" and "2min" into seconds. kInvalidArgument without a unit.
[[nodiscard]] Result<double> parse_duration(std::string_view text);

}  // namespace neap::report
