// The moves of a run, a row for each tag and phase: what was copied, how long that took, and how much of it was waited for.
//
// Threads   values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "report/run_folder.h"

namespace neap::report {

struct MoveRow {
  std::string phase;           ///< before it, or behind it
  std::string kind, tag;       ///< as in MoveLine
  bool behind = false;         ///< while the phase computed
  std::uint64_t times = 0;     ///< the columns below are means of these
  Bytes copied;                ///< over the link
  double copy_seconds = 0;     ///< of its copies
  double visible_seconds = 0;  ///< waited for
};

struct MoveTable {
  std::vector<MoveRow> rows;  ///< moves that copied, in the order in which they first ran

  [[nodiscard]] static MoveTable from_records(std::span<const PhaseRecord> records);
  [[nodiscard]] std::string to_text() const;  ///< empty without rows
  [[nodiscard]] Json to_json() const;
};

}  // namespace neap::report
