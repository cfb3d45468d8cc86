// Planned and measured figures of each phase: the table at the end of a run, and the four lines above
// it.
//
// Threads   values.
// Failure   from_json names the key that is missing or wrong.
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

/// The part of plan::MemoryPlan::to_json that a report compares with.
struct PlanSummary {
  struct Phase {
    std::string name;
    Bytes persistent, transient, peak;
  };
  Bytes capacity;  ///< zero: unlimited
  Bytes all_resident;
  Bytes peak;
  std::vector<Phase> phases;

  [[nodiscard]] static Result<PlanSummary> from_json(const Json& plan);
  [[nodiscard]] const Phase* find(std::string_view phase) const;
};

/// A phase under one plan. A run that resumed with other keys has rows of each of its plans.
struct PhaseRow {
  std::string phase;
  std::uint64_t first_step = 0, last_step = 0;  ///< of the run; 0 where it is not known
  std::uint64_t times = 0;       ///< how often it ran; the columns below say max or mean of these
  std::optional<Bytes> planned;  ///< peak of device memory by the plan
  Bytes reserved;                ///< max; device memory held
  Bytes allocated;               ///< max; live tensors
  Bytes fragmentation;           ///< max; reserved - allocated when the pool asked for more
  Bytes moved;                   ///< mean; over the link
  std::uint64_t as_planned = 0;  ///< how often its moves were the plan's
  double seconds = 0;            ///< mean; of the phase's own work
  double move_seconds = 0;       ///< mean; of the moves before it
};

struct PhaseTable {
  std::vector<PhaseRow> rows;  ///< in the order in which the phases first ran

  /// Records are compared with the plan that they ran under; with `plan` where they do not say it.
  [[nodiscard]] static PhaseTable from_records(std::span<const PhaseRecord> records,
                                               const PlanSummary* plan = nullptr);
  /// From a trace alone. Nested phases have rows of their own.
  [[nodiscard]] static PhaseTable from_history(const History& history,
                                               const PlanSummary* plan = nullptr);
  /// Head and rows as text: what the forms below print.
  [[nodiscard]] std::vector<std::vector<std::string>> cells() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] std::string to_markdown() const;
  [[nodiscard]] Json to_json() const;
};

/// The four numbers that say what Neap saved.
struct MemoryLines {
  Bytes all_resident;
  Bytes ceiling;  ///< zero: none
  Bytes measured_peak;
  Bytes planned_peak;

  [[nodiscard]] static MemoryLines of(const PlanSummary& plan, Bytes measured_peak) {
    return {plan.all_resident, plan.capacity, measured_peak, plan.peak};
  }
  /// Measured against planned, in percent; positive when more was used than planned.
  [[nodiscard]] double deviation_percent() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;
};

/// The highest peak of the records that ran under `plan`; zero where none did.
[[nodiscard]] Bytes peak_under(const PlanSummary& plan, std::span<const PhaseRecord> records);

/// Columns padded to the widest cell, the first one to the left, the others to the right.
[[nodiscard]] std::string aligned(std::vector<std::vector<std::string>> cells);
[[nodiscard]] std::string markdown(const std::vector<std::vector<std::string>>& cells);

}  // namespace neap::report
