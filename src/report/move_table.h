// Table of the copies between a run's device and the host, with a row per tag and phase. It covers
// moves between phases, moves overlapped with phases, and offloading within phases. It shows the
// bytes, the duration, and the exposed time.
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
  std::string kind, tag;    ///< as in MoveLine; for "within": "stream", tag and kind of data
  std::uint64_t times = 0;  ///< number of moves; the following columns are means
  Bytes copied;             ///< over the link
  std::optional<double> copy_seconds{};  ///< duration of its copies; unknown for "within"
  double visible_seconds = 0;            ///< time that the program waited
};

struct MoveTable {
  std::vector<MoveRow> rows;  ///< in the order in which the moves first ran

  [[nodiscard]] static MoveTable from_records(std::span<const PhaseRecord> records);
  [[nodiscard]] std::string to_text() const;  ///< empty without rows
  [[nodiscard]] Json to_json() const;
};

}  // namespace neap::report
