// The copies between a run's device and the host, a row for each tag and phase: moves before and behind phases,
// and what slots take and give within them. What was copied, how long that took, how much of it was waited for.
//
// Threads   values.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "report/run_folder.h"

namespace neap::report {

struct MoveRow {
  std::string phase;
  std::string when;         ///< "before" the phase, "overlapped" with it, or "within" it
  std::string kind, tag;    ///< as in MoveLine; within: "stream" and the tag with what of it
  std::uint64_t times = 0;  ///< the columns below are means of these
  Bytes copied;             ///< over the link
  std::optional<double> copy_seconds{};  ///< of its copies; within: not known
  double visible_seconds = 0;            ///< waited for
};

struct MoveTable {
  std::vector<MoveRow> rows;  ///< what copied, in the order in which it first ran

  [[nodiscard]] static MoveTable from_records(std::span<const PhaseRecord> records);
  [[nodiscard]] std::string to_text() const;  ///< empty without rows
  [[nodiscard]] Json to_json() const;
};

}  // namespace neap::report
