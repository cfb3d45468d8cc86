// From a path to a Report: a run's folder, a Neap trace, or a snapshot of PyTorch's allocator.
//
// Failure   names the file and what is wrong with it; files that a run may lack (plan.json,
//           phases.jsonl) are left out with a note.
// Cost      two passes over the events (one more for segment maps).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace neap::report {

struct LoadOptions {
  std::optional<std::uint16_t> device;  ///< ordinal; unset: the one with most events
  /// Moments of segment maps: "peak", "peak-allocated", "end", "3.2s", "120ms", "#4711" (event).
  /// Empty: at the peak, where the trace has segments.
  std::vector<std::string> at;
  std::filesystem::path replay;  ///< output of `neap replay --json`; empty: none
  std::size_t max_leaves = kMaxLeaves;
  bool progress = false;
};

[[nodiscard]] Result<Report> load_report(const std::filesystem::path& input,
                                         const LoadOptions& options = {});
/// The same from a trace in memory; `title` names it. Used at a run's end.
[[nodiscard]] Result<Report> make_report(const trace::Recording& recording, std::string title,
                                         std::optional<PlanSummary> plan,
                                         const std::vector<PhaseRecord>& records,
                                         const LoadOptions& options = {});

/// Writes the page of a run's folder.
[[nodiscard]] Status write_report(const std::filesystem::path& run,
                                  const std::filesystem::path& page);

/// kInvalidArgument, with the recording's length, for a moment after its end.
[[nodiscard]] Status check_moment(std::string_view option, double seconds, const History& history);

/// "3.2s", "120 ms", "15us", "2min" as seconds; kInvalidArgument without a unit.
[[nodiscard]] Result<double> parse_duration(std::string_view text);

}  // namespace neap::report
