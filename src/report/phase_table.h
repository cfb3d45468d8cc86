// Planned and measured figures of each phase: the table at the end of a run, and the four lines
// above it.
//
// Threads   values.
//
// Failure   from_json names the missing or wrong key.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/history.h"
#include "report/run_folder.h"

namespace neap::report {

/// The part of plan::MemoryPlan::to_json that a report uses.
struct PlanSummary {
  struct Phase {
    std::string name;
    Bytes persistent, transient, peak;
    double times = 1;  ///< executions per step; 0: once, before the first step
    double share = 1;  ///< fraction of steps that have it
  };
  Bytes capacity;  ///< zero: unlimited
  Bytes all_resident;
  Bytes peak;
  std::vector<Phase> phases;

  [[nodiscard]] static Result<PlanSummary> from_json(const Json& plan);
  [[nodiscard]] const Phase* find(std::string_view phase) const;
};

/// A phase under one plan. A run that resumed with other keys has rows for each of its plans.
struct PhaseRow {
  std::string phase;
  std::uint64_t first_step = 0, last_step = 0;  ///< 0 if unknown
  std::uint64_t times = 0;       ///< number of executions; the columns below are their max or mean
  std::optional<Bytes> planned;  ///< planned peak of device memory
  Bytes reserved;                ///< max; device memory held
  Bytes allocated;               ///< max; live tensors
  Bytes fragmentation;           ///< max; reserved - allocated when the pool requested more memory
  Bytes moved;                   ///< mean; over the link
  std::uint64_t as_planned = 0;  ///< number of executions whose moves were the plan's
  double seconds = 0;            ///< mean; without moves
  double move_seconds = 0;       ///< mean; of the moves before it
};

struct PhaseTable {
  std::vector<PhaseRow> rows;  ///< in the order in which the phases first ran

  /// Compares records with the plan that they ran under. `plan` is used for records without that
  /// information.
  [[nodiscard]] static PhaseTable from_records(std::span<const PhaseRecord> records,
                                               const PlanSummary* plan = nullptr);
  /// Makes the table from a trace alone. Nested phases have separate rows.
  [[nodiscard]] static PhaseTable from_history(const History& history,
                                               const PlanSummary* plan = nullptr);
  /// Header and rows as text, for the formats below.
  [[nodiscard]] std::vector<std::vector<std::string>> cells() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] std::string to_markdown() const;
  [[nodiscard]] Json to_json() const;
};

/// Four numbers that summarize the memory saved by Neap.
struct MemoryLines {
  Bytes all_resident;
  Bytes ceiling;  ///< zero: none
  Bytes measured_peak;
  Bytes planned_peak;

  [[nodiscard]] static MemoryLines of(const PlanSummary& plan, Bytes measured_peak) {
    return {plan.all_resident, plan.capacity, measured_peak, plan.peak};
  }
  /// Deviation of the measured from the planned bytes in percent; positive if more was used.
  [[nodiscard]] double deviation_percent() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;
};

/// Highest peak of the records that ran under `plan`; zero if none did.
[[nodiscard]] Bytes peak_under(const PlanSummary& plan, std::span<const PhaseRecord> records);

/// Pads columns to their widest cell. The first column is left-aligned, the others right-aligned.
[[nodiscard]] std::string aligned(std::vector<std::vector<std::string>> cells);
[[nodiscard]] std::string markdown(const std::vector<std::vector<std::string>>& cells);

}  // namespace neap::report
