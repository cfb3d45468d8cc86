#include "report/move_table.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "report/phase_table.h"

namespace neap::report {

namespace {

std::vector<MoveRow> rows_of(const PhaseRecord& record) {
  std::vector<MoveRow> rows;
  for (const MoveLine& move : record.moves) {
    rows.push_back({record.phase, move.behind ? "overlapped" : "before", move.kind, move.tag, 1,
                    move.copied, move.copy_seconds, move.visible_seconds});
  }
  for (const StreamedLine& s : record.streamed) {
    rows.push_back({record.phase, "within", "stream", s.tag + " " + s.what, 1,
                    s.to_device + s.to_host, std::nullopt, s.visible_seconds});
  }
  return rows;
}

}  // namespace

MoveTable MoveTable::from_records(std::span<const PhaseRecord> records) {
  MoveTable table;
  for (const PhaseRecord& record : records) {
    for (MoveRow& one : rows_of(record)) {
      if (one.copied.is_zero()) continue;
      const auto same = std::find_if(table.rows.begin(), table.rows.end(), [&](const MoveRow& row) {
        return row.phase == one.phase && row.when == one.when && row.kind == one.kind &&
               row.tag == one.tag;
      });
      if (same == table.rows.end()) {
        table.rows.push_back(std::move(one));
        continue;
      }
      ++same->times;
      same->copied += one.copied;
      if (same->copy_seconds) *same->copy_seconds += one.copy_seconds.value_or(0);
      same->visible_seconds += one.visible_seconds;
    }
  }
  for (MoveRow& row : table.rows) {
    const auto times = static_cast<double>(row.times);
    row.copied = row.copied / row.times;
    if (row.copy_seconds) *row.copy_seconds /= times;
    row.visible_seconds /= times;
  }
  return table;
}

std::string MoveTable::to_text() const {
  if (rows.empty()) return {};
  std::vector<std::vector<std::string>> cells{
      {"phase", "when", "move", "tag", "times", "copied", "copy s", "exposed s"}};
  for (const MoveRow& row : rows) {
    cells.push_back({row.phase, row.when, row.kind, row.tag, std::to_string(row.times),
                     to_string(row.copied),
                     row.copy_seconds ? format("{:.4f}", *row.copy_seconds) : "-",
                     format("{:.4f}", row.visible_seconds)});
  }
  return aligned(cells);
}

Json MoveTable::to_json() const {
  Json out = Json::array();
  for (const MoveRow& row : rows) {
    out.push_back({{"phase", row.phase},
                   {"when", row.when},
                   {"kind", row.kind},
                   {"tag", row.tag},
                   {"times", row.times},
                   {"copied", row.copied.count()},
                   {"copy_seconds", row.copy_seconds ? Json(*row.copy_seconds) : Json(nullptr)},
                   {"exposed_seconds", row.visible_seconds}});
  }
  return out;
}

}  // namespace neap::report
