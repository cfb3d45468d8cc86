// What `neap replay` prints for people.
#include <algorithm>

#include "base/format.h"
#include "replay/summary.h"

namespace neap::replay {
namespace {

/// Columns as wide as their widest cell; the first is flush left, the others right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::string text() const {
    std::vector<std::size_t> widths(rows_[0].size());
    for (const auto& row : rows_)
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string out;
    for (const auto& row : rows_) {
      std::string line = "  ";
      for (std::size_t i = 0; i < row.size(); ++i)
        line +=
            i == 0 ? format("{:<{}}", row[i], widths[i]) : format("  {:>{}}", row[i], widths[i]);
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string share(std::uint64_t part, std::uint64_t whole, std::string_view what) {
  if (whole == 0) return format("no {}", what);
  return format("{} of {} {} ({:.2f} %)", part, whole, what,
                100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string failure(const OutOfMemory& oom) {
  return format("out of memory at event {} in {}: needs {}, {} free", oom.event,
                without_prefix(oom.phase), oom.need, oom.free);
}

std::string recorded(const Summary& summary) {
  const Workload& w = *summary.workload;
  const cache::CacheStats& stats = summary.fidelity.stats;
  const std::string conf = w.settings.to_string();
  std::string text = format(
      "Recorded   {} events on device {}, settings {}\n"
      "           peak reserved {}, peak allocated {}, fragmentation at the peak {}\n"
      "           {} driver allocations, {} driver frees\n",
      w.allocator_events, w.device->ordinal, conf.empty() ? "(defaults)" : conf,
      stats.peak_reserved, stats.peak_allocated, stats.fragmentation_at_peak, stats.device_allocs,
      stats.device_frees);
  return text;
}

std::string fidelity(const Fidelity& f) {
  std::string text =
      format("Fidelity   {}, {}\n", share(f.allocs_equal, f.allocs, "addresses equal"),
             share(f.segments_equal, f.segments, "segment events"));
  if (f.first_divergence)
    text += format("           first divergence at event {}: {}\n           likely reason: {}\n",
                   f.first_divergence->event, f.first_divergence->what, f.first_divergence->reason);
  if (!f.holds())
    text +=
        "           BELOW 99.9 %: this replay does not reproduce the recording. The figures below\n"
        "           show a tendency and predict nothing.\n";
  return text;
}

std::string phases(const Fidelity& recorded) {
  if (recorded.phases.empty()) return {};
  Table table({"phase", "runs", "peak allocated", "peak reserved", "most fragmentation",
               "reserved at its end", "driver allocs"});
  for (const PhaseFigures& phase : recorded.phases)
    table.add({std::string(without_prefix(phase.name)), std::to_string(phase.runs),
               to_string(phase.peak_allocated), to_string(phase.peak_reserved),
               to_string(phase.fragmentation_max), to_string(phase.end_reserved),
               std::to_string(phase.driver_allocs)});
  return "\nPhases, as recorded\n" + table.text();
}

std::string what_if(const Summary& summary) {
  if (summary.what_if.empty()) return {};
  Table table({"settings", "empty_cache after", "peak reserved", "peak allocated", "frag. overhead",
               "driver allocs", "frees", "driver time", "retries"});
  std::string shortages;
  for (const WhatIf& line : summary.what_if) {
    const Outcome& o = line.outcome;
    const auto allocs = o.driver_allocs_range();
    table.add({line.scenario.name(), line.scenario.empty.to_string(),
               o.oom ? "out of memory" : to_string(o.peak_reserved_range()),
               to_string(o.peak_allocated), to_string(o.fragmentation_overhead),
               allocs.is_one_number() ? std::to_string(allocs.least)
                                      : format("{} to {}", allocs.least, allocs.most),
               std::to_string(o.driver_frees), format("{:.0f} ms", o.driver_ms),
               std::to_string(o.retries)});
    if (o.oom)
      shortages += format("  {}, {}: {}\n", line.scenario.name(), line.scenario.empty.to_string(),
                          failure(*o.oom));
    else if (const std::size_t failed = o.orders_out_of_memory(); failed > 0)
      shortages +=
          format("  {}, {}: out of memory under {} of {} address orders\n", line.scenario.name(),
                 line.scenario.empty.to_string(), failed, o.orders.size());
  }
  return format("\nWhat if{}\n", summary.cut ? ", in the recorded window" : "") + table.text() +
         shortages;
}

std::string advice(const AdviceReport& report) {
  std::string text = "\nAdvice\n";
  if (!report.note.empty()) text += format("  {}\n", report.note);
  for (std::size_t i = 0; i < report.ranked.size(); ++i) {
    const Advice& a = report.ranked[i];
    text += format("  {}. {}, peak {}\n     {}\n", i + 1, a.scenario.name(),
                   to_string(a.outcome.peak_reserved_range()), a.why);
    if (!a.environment.empty()) text += format("       {}\n", a.environment);
    if (!a.code.empty()) text += format("       {}\n", a.code);
    for (const std::string& warning : a.warnings) text += format("     Note: {}\n", warning);
  }
  for (const std::string& note : report.lint) text += format("  Recorded settings: {}\n", note);
  return text;
}

std::string groups(const char* title, const std::vector<PinGroup>& list, std::size_t most) {
  if (list.empty()) return {};
  Table table({title, "blocks", "live", "pins (share)", "pins alone"});
  for (std::size_t i = 0; i < std::min(most, list.size()); ++i)
    table.add({std::string(without_prefix(list[i].name)), std::to_string(list[i].blocks),
               to_string(list[i].live), to_string(list[i].share), to_string(list[i].alone)});
  return table.text();
}

std::string blame(const Blame& b) {
  std::string text = format(
      "\nBlame, at event {} ({:.3f} s) in {}: {} reserved, {} allocated, {} pinned by live blocks, "
      "{} "
      "free to be released\n",
      b.event, static_cast<double>(b.time_ns) / 1e9, without_prefix(b.phase), b.reserved,
      b.allocated, b.pinned, b.releasable);
  text += groups("born in", b.by_phase, 12);
  text += groups("size", b.by_size, 12);
  text += groups("stack", b.by_stack, 10);
  if (!b.gaps.empty()) {
    text += "  largest gaps\n";
    for (const Gap& gap : b.gaps)
      text += format("    {} in a segment of {}, between {} and {}\n", gap.size, gap.segment_size,
                     gap.before.empty() ? "its start" : gap.before,
                     gap.after.empty() ? "its end" : gap.after);
  }
  return text;
}

}  // namespace

std::string to_text(const Summary& summary) {
  std::string text = recorded(summary) + fidelity(summary.fidelity);
  if (summary.cut) text += format("Note       {}\n", summary.cut->explanation());
  for (const std::string& note : summary.workload->notes) text += format("Note       {}\n", note);
  text += phases(summary.fidelity);
  if (summary.baseline.oom)
    text += format("\nUnder a capacity of {}, the recorded settings run {}\n", summary.capacity,
                   failure(*summary.baseline.oom));
  text += what_if(summary);
  if (summary.advice) text += advice(*summary.advice);
  if (summary.blame) text += blame(*summary.blame);
  return text;
}

}  // namespace neap::replay
