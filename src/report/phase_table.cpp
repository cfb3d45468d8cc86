#include "report/phase_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/format.h"
#include "base/text.h"

namespace neap::report {
namespace {

std::optional<Bytes> peak_of(const PlanSummary* plan, std::string_view phase) {
  const PlanSummary::Phase* planned = plan != nullptr ? plan->find(phase) : nullptr;
  return planned != nullptr ? std::optional(planned->peak) : std::nullopt;
}

std::optional<Bytes> peak_of(const PlanSummary* plan, const PhaseRecord& record) {
  return record.planned ? record.planned : peak_of(plan, record.phase);
}

/// Rows by phase name and planned peak, in the order of first use.
class Rows {
 public:
  PhaseRow& row(const std::string& phase, std::optional<Bytes> planned, std::uint64_t step) {
    const auto [it, fresh] = index_.try_emplace({phase, planned}, table_.rows.size());
    if (fresh) {
      PhaseRow row;
      row.phase = phase;
      row.planned = planned;
      row.first_step = step;
      table_.rows.push_back(row);
      moved_.push_back(0);
    }
    PhaseRow& row = table_.rows[it->second];
    row.last_step = step;
    return row;
  }
  /// Adds to sums, which take() divides.
  void add(PhaseRow& row, std::uint64_t moved, double seconds, double move_seconds) {
    ++row.times;
    moved_[static_cast<std::size_t>(&row - table_.rows.data())] += moved;
    row.seconds += seconds;
    row.move_seconds += move_seconds;
  }
  PhaseTable take() {
    for (std::size_t i = 0; i < table_.rows.size(); ++i) {
      PhaseRow& row = table_.rows[i];
      row.moved = Bytes(moved_[i] / row.times);
      row.seconds /= static_cast<double>(row.times);
      row.move_seconds /= static_cast<double>(row.times);
    }
    return std::move(table_);
  }

 private:
  PhaseTable table_;
  std::vector<std::uint64_t> moved_;
  std::map<std::pair<std::string, std::optional<Bytes>>, std::size_t> index_;
};

}  // namespace

Result<PlanSummary> PlanSummary::from_json(const Json& plan) {
  Status failure;
  const auto wrong = [&failure](const std::string& key) {
    if (failure.ok())
      failure = Status(ErrorCode::kCorrupt,
                       "memory plan: \"" + key + "\" is missing or of the wrong type");
  };
  const auto bytes = [&](const Json& object, const char* key, const std::string& path) {
    if (object.is_object() && object.contains(key) && object[key].is_number_unsigned())
      return Bytes(object[key].get<std::uint64_t>());
    wrong(path + key);
    return Bytes();
  };
  // 1 in older plans, which lack the key.
  const auto number = [&](const Json& object, const char* key, const std::string& path) {
    if (!object.is_object() || !object.contains(key)) return 1.0;
    if (object[key].is_number()) return object[key].get<double>();
    wrong(path + key);
    return 1.0;
  };
  PlanSummary summary;
  summary.capacity = bytes(plan, "capacity", "");
  summary.all_resident = bytes(plan, "peak_without_offload", "");
  summary.peak = bytes(plan, "peak", "");
  if (failure.ok() && !(plan.contains("phases") && plan["phases"].is_array())) wrong("phases");
  for (std::size_t i = 0; failure.ok() && i < plan["phases"].size(); ++i) {
    const Json& entry = plan["phases"][i];
    const std::string path = format("phases[{}].", i);
    Phase phase;
    if (entry.is_object() && entry.contains("name") && entry["name"].is_string())
      phase.name = entry["name"].get<std::string>();
    else
      wrong(path + "name");
    phase.transient = bytes(entry, "temporary", path);
    phase.persistent = bytes(entry, "persistent", path);
    phase.peak = bytes(entry, "peak", path);
    phase.times = number(entry, "times", path);
    phase.share = number(entry, "share", path);
    summary.phases.push_back(std::move(phase));
  }
  if (!failure.ok()) return failure;
  return summary;
}

const PlanSummary::Phase* PlanSummary::find(std::string_view phase) const {
  const auto it = std::find_if(phases.begin(), phases.end(),
                               [phase](const Phase& p) { return p.name == phase; });
  return it == phases.end() ? nullptr : &*it;
}

PhaseTable PhaseTable::from_records(std::span<const PhaseRecord> records, const PlanSummary* plan) {
  Rows rows;
  for (const PhaseRecord& record : records) {
    PhaseRow& row = rows.row(record.phase, peak_of(plan, record), record.step);
    row.reserved = std::max(row.reserved, record.peak);
    row.allocated = std::max(row.allocated, record.persistent + record.transient_allocated);
    row.fragmentation = std::max(row.fragmentation, record.fragmentation_at_peak);
    row.as_planned += record.as_planned ? 1 : 0;
    rows.add(row, record.moved.count(), record.seconds, record.move_seconds);
  }
  return rows.take();
}

PhaseTable PhaseTable::from_history(const History& history, const PlanSummary* plan) {
  Rows rows;
  for (const PhaseSpan& span : history.phases) {
    PhaseRow& row = rows.row(span.name, peak_of(plan, span.name), 0);
    row.reserved = std::max(row.reserved, Bytes(span.peak_reserved));
    row.allocated = std::max(row.allocated, Bytes(span.peak_total));
    row.fragmentation = std::max(row.fragmentation, Bytes(span.fragmentation));
    rows.add(row, span.copied, static_cast<double>(span.end_ns - span.begin_ns) * 1e-9, 0);
  }
  return rows.take();
}

std::vector<std::vector<std::string>> PhaseTable::cells() const {
  const bool planned = std::any_of(rows.begin(), rows.end(),
                                   [](const PhaseRow& r) { return r.planned.has_value(); });
  std::set<std::string> phases;
  for (const PhaseRow& r : rows) phases.insert(r.phase);
  const bool several_plans = phases.size() < rows.size();
  std::vector<std::vector<std::string>> cells{{"phase", "times"}};
  if (several_plans) cells[0].emplace_back("steps");
  if (planned) cells[0].insert(cells[0].end(), {"planned", "vs plan"});
  cells[0].insert(cells[0].end(), {"reserved", "allocated", "fragmentation", "moved", "seconds"});
  for (const PhaseRow& r : rows) {
    std::vector<std::string> line{r.phase, std::to_string(r.times)};
    if (several_plans) line.push_back(format("{}-{}", r.first_step, r.last_step));
    if (planned) {
      line.push_back(r.planned ? to_string(*r.planned) : "-");
      line.push_back(
          r.planned && !r.planned->is_zero()
              ? format("{:+.1f} %", 100.0 * (static_cast<double>(r.reserved.count()) /
                                                 static_cast<double>(r.planned->count()) -
                                             1))
              : "-");
    }
    line.insert(line.end(),
                {to_string(r.reserved), to_string(r.allocated), to_string(r.fragmentation),
                 to_string(r.moved), format("{:.3f}", r.seconds + r.move_seconds)});
    cells.push_back(std::move(line));
  }
  return cells;
}

std::string PhaseTable::to_text() const {
  return aligned(cells());
}

std::string PhaseTable::to_markdown() const {
  return markdown(cells());
}

Json PhaseTable::to_json() const {
  Json out = Json::array();
  for (const PhaseRow& r : rows) {
    out.push_back({{"phase", r.phase},
                   {"times", r.times},
                   {"first_step", r.first_step},
                   {"last_step", r.last_step},
                   {"planned", r.planned ? Json(r.planned->count()) : Json(nullptr)},
                   {"reserved", r.reserved.count()},
                   {"allocated", r.allocated.count()},
                   {"fragmentation", r.fragmentation.count()},
                   {"moved", r.moved.count()},
                   {"as_planned", r.as_planned},
                   {"seconds", r.seconds},
                   {"move_seconds", r.move_seconds}});
  }
  return out;
}

Bytes peak_under(const PlanSummary& plan, std::span<const PhaseRecord> records) {
  Bytes peak;
  for (const PhaseRecord& record : records) {
    if (peak_of(&plan, record) == peak_of(&plan, record.phase)) peak = std::max(peak, record.peak);
  }
  return peak;
}

double MemoryLines::deviation_percent() const {
  if (planned_peak.is_zero()) return 0;
  const double share =
      static_cast<double>(measured_peak.count()) / static_cast<double>(planned_peak.count());
  return 100 * (share - 1);
}

std::string MemoryLines::to_text() const {
  return format(
      "no offloading  {}\n"
      "ceiling        {}\n"
      "measured peak  {}  ({:+.1f} % of planned)\n"
      "planned peak   {}\n",
      to_string(all_resident), ceiling.is_zero() ? "none" : to_string(ceiling),
      to_string(measured_peak), deviation_percent(), to_string(planned_peak));
}

Json MemoryLines::to_json() const {
  return {{"peak_without_offload", all_resident.count()},
          {"ceiling", ceiling.count()},
          {"measured_peak", measured_peak.count()},
          {"planned_peak", planned_peak.count()}};
}

std::string aligned(std::vector<std::vector<std::string>> cells) {
  std::vector<std::size_t> widths;
  for (auto& line : cells) {
    for (std::string& cell : line) cell = printable(cell);
    widths.resize(std::max(widths.size(), line.size()));
    for (std::size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(line[i]));
  }
  std::string out;
  for (const auto& line : cells) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string padding(widths[i] - columns_of(line[i]), ' ');
      if (i > 0) out += "  ";
      out += i == 0 ? line[i] : padding + line[i];
      if (i == 0 && line.size() > 1) out += padding;
    }
    out += '\n';
  }
  return out;
}

std::string markdown(const std::vector<std::vector<std::string>>& cells) {
  std::string out;
  for (std::size_t row = 0; row < cells.size(); ++row) {
    for (const std::string& cell : cells[row]) {
      out += "| ";
      for (const char c : cell) out += c == '|' ? std::string("\\|") : std::string(1, c);
      out += ' ';
    }
    out += "|\n";
    if (row > 0) continue;
    for (std::size_t i = 0; i < cells[0].size(); ++i) out += i == 0 ? "|---" : "|---:";
    out += "|\n";
  }
  return out;
}

}  // namespace neap::report
