#include "report/move_table.h"

#include <algorithm>

#include "base/format.h"
#include "report/phase_table.h"

namespace neap::report {

MoveTable MoveTable::from_records(std::span<const PhaseRecord> records) {
  MoveTable table;
  for (const PhaseRecord& record : records) {
    for (const MoveLine& move : record.moves) {
      if (move.copied.is_zero()) continue;
      const auto same = [&](const MoveRow& row) {
        return row.phase == record.phase && row.kind == move.kind && row.tag == move.tag &&
               row.behind == move.behind;
      };
      auto row = std::find_if(table.rows.begin(), table.rows.end(), same);
      if (row == table.rows.end()) {
        table.rows.push_back({record.phase, move.kind, move.tag, move.behind, 0, Bytes(), 0, 0});
        row = table.rows.end() - 1;
      }
      ++row->times;
      row->copied += move.copied;
      row->copy_seconds += move.copy_seconds;
      row->visible_seconds += move.visible_seconds;
    }
  }
  for (MoveRow& row : table.rows) {
    row.copied = row.copied / row.times;
    row.copy_seconds /= static_cast<double>(row.times);
    row.visible_seconds /= static_cast<double>(row.times);
  }
  return table;
}

std::string MoveTable::to_text() const {
  if (rows.empty()) return {};
  std::vector<std::vector<std::string>> cells{
      {"phase", "when", "move", "tag", "times", "copied", "copy s", "visible s"}};
  for (const MoveRow& row : rows) {
    cells.push_back({row.phase, row.behind ? "behind" : "before", row.kind, row.tag,
                     std::to_string(row.times), to_string(row.copied),
                     format("{:.4f}", row.copy_seconds), format("{:.4f}", row.visible_seconds)});
  }
  return aligned(cells);
}

Json MoveTable::to_json() const {
  Json out = Json::array();
  for (const MoveRow& row : rows) {
    out.push_back({{"phase", row.phase},
                   {"behind", row.behind},
                   {"kind", row.kind},
                   {"tag", row.tag},
                   {"times", row.times},
                   {"copied", row.copied.count()},
                   {"copy_seconds", row.copy_seconds},
                   {"visible_seconds", row.visible_seconds}});
  }
  return out;
}

}  // namespace neap::report
