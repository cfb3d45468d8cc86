// Text that `neap replay` prints for people.
#include <algorithm>

#include "base/format.h"
#include "base/text.h"
#include "replay/summary.h"

namespace neap::replay {
namespace {

constexpr std::size_t kColumns = 120;

/// Wraps `text` to at most `columns`, at spaces. Longer words are broken after commas.
std::vector<std::string> lines_of(std::string_view text, std::size_t columns) {
  std::vector<std::string> lines(1);
  const auto take = [&](std::string_view piece, std::string_view before) {
    const std::size_t used = columns_of(lines.back());
    if (used > 0 && used + before.size() + columns_of(piece) > columns)
      lines.emplace_back(piece);
    else
      lines.back().append(used > 0 ? before : "").append(piece);
  };
  while (!text.empty()) {
    std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    std::string_view before = " ";
    for (; columns_of(word) > columns; before = {}) {
      const std::size_t room = bytes_of_columns(word, columns);
      const std::size_t comma = word.substr(0, room).rfind(',');
      const std::size_t end = comma == std::string_view::npos ? room : comma + 1;
      take(word.substr(0, end), before);
      word.remove_prefix(end);
    }
    take(word, before);
  }
  return lines;
}

/// Writes `head` with the wrapped `text` to its right.
std::string wrapped(std::string_view head, std::string_view text) {
  std::string out;
  std::string_view front = head;
  const std::string below(columns_of(head), ' ');
  for (const std::string& line : lines_of(text, kColumns - below.size())) {
    out.append(front).append(line).append("\n");
    front = below;
  }
  return out;
}

/// Columns are as wide as their widest cell. The first is left-aligned, the others right-aligned.
/// If a row would be too long, cells of the first two columns are wrapped.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::string text() const {
    const std::vector<std::size_t> widths = widths_that_fit();
    std::string out;
    for (const auto& row : rows_) {
      std::vector<std::vector<std::string>> cells(row.size());
      std::size_t height = 0;
      for (std::size_t i = 0; i < row.size(); ++i) {
        cells[i] = lines_of(row[i], widths[i]);
        height = std::max(height, cells[i].size());
      }
      for (std::size_t at = 0; at < height; ++at) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
          const std::string cell = at < cells[i].size() ? cells[i][at] : std::string();
          const std::string space(widths[i] - std::min(widths[i], columns_of(cell)), ' ');
          line += "  " + (i == 0 ? cell + space : space + cell);
        }
        out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      }
    }
    return out;
  }

 private:
  [[nodiscard]] std::vector<std::size_t> widths_that_fit() const {
    std::vector<std::size_t> widths(rows_[0].size());
    for (const auto& row : rows_)
      for (std::size_t i = 0; i < row.size(); ++i)
        widths[i] = std::max(widths[i], columns_of(row[i]));
    std::size_t total = 2 * widths.size();
    for (const std::size_t width : widths) total += width;
    constexpr std::size_t kLeast = 14;
    for (; total > kColumns && std::max(widths[0], widths[1]) > kLeast; --total)
      --(widths[0] >= widths[1] ? widths[0] : widths[1]);
    return widths;
  }

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
  return wrapped("Recorded   ", format("{} events on device {}, settings {}", w.allocator_events,
                                       w.device->ordinal, conf.empty() ? "(defaults)" : conf)) +
         format(
             "           peak reserved {}, peak allocated {}, fragmentation at the peak {}\n"
             "           {} driver allocations, {} driver frees\n",
             stats.peak_reserved, stats.peak_allocated, stats.fragmentation_at_peak,
             stats.device_allocs, stats.device_frees);
}

std::string fidelity(const Fidelity& f) {
  std::string text =
      format("Fidelity   {}, {}\n", share(f.allocs_equal, f.allocs, "addresses equal"),
             share(f.segments_equal, f.segments, "segment events"));
  if (f.first_divergence)
    text +=
        wrapped("           first divergence ",
                format("at event {}: {}", f.first_divergence->event, f.first_divergence->what)) +
        wrapped("           likely reason: ", f.first_divergence->reason);
  if (!f.holds())
    text += wrapped("           ",
                    "BELOW 99.9 %: this replay does not reproduce the recording. The figures below "
                    "show a tendency.");
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
  Table table({"settings", "emptied after", "reserved", "allocated", "overhead", "allocs", "frees",
               "time", "retries"});
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
      shortages += wrapped("  ", format("{}, {}: {}", line.scenario.name(),
                                        line.scenario.empty.to_string(), failure(*o.oom)));
    else if (const std::size_t failed = o.orders_out_of_memory(); failed > 0)
      shortages += wrapped(
          "  ", format("{}, {}: out of memory under {} of {} address orders", line.scenario.name(),
                       line.scenario.empty.to_string(), failed, o.orders.size()));
  }
  return format("\nWhat if{}: peaks of memory, driver calls and their time\n",
                summary.cut ? ", in the recorded window" : "") +
         table.text() + shortages;
}

std::string advice(const AdviceReport& report) {
  std::string text = "\nAdvice\n";
  if (!report.note.empty()) text += wrapped("  ", report.note);
  for (std::size_t i = 0; i < report.ranked.size(); ++i) {
    const Advice& a = report.ranked[i];
    text += wrapped(format("  {}. ", i + 1), format("{}, peak {}", a.scenario.name(),
                                                    to_string(a.outcome.peak_reserved_range()))) +
            wrapped("     ", a.why);
    if (!a.environment.empty()) text += format("       {}\n", a.environment);
    if (!a.code.empty()) text += format("       {}\n", a.code);
    for (const std::string& warning : a.warnings) text += wrapped("     Note: ", warning);
  }
  for (const std::string& note : report.lint) text += wrapped("  Recorded settings: ", note);
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
  std::string text =
      format("\nBlame, at event {} ({:.3f} s) in {}\n", b.event,
             static_cast<double>(b.time_ns) / 1e9, without_prefix(b.phase)) +
      format("  {} reserved, {} allocated, {} pinned by live blocks, {} free to be released\n",
             b.reserved, b.allocated, b.pinned, b.releasable);
  text += groups("allocated in", b.by_phase, 12);
  text += groups("size", b.by_size, 12);
  text += groups("stack", b.by_stack, 10);
  if (!b.gaps.empty()) {
    text += "  largest gaps\n";
    for (const Gap& gap : b.gaps)
      text +=
          wrapped("    ", format("{} in a segment of {}, between {} and {}", gap.size,
                                 gap.segment_size, gap.before.empty() ? "its start" : gap.before,
                                 gap.after.empty() ? "its end" : gap.after));
  }
  return text;
}

}  // namespace

std::string to_text(const Summary& summary) {
  std::string text = recorded(summary) + fidelity(summary.fidelity);
  if (summary.cut) text += wrapped("Note       ", summary.cut->explanation());
  for (const std::string& note : summary.workload->notes) text += wrapped("Note       ", note);
  text += phases(summary.fidelity);
  if (summary.baseline.oom)
    text += "\n" + wrapped("", format("Under a capacity of {}, the recorded settings run {}",
                                      summary.capacity, failure(*summary.baseline.oom)));
  text += what_if(summary);
  if (summary.advice) text += advice(*summary.advice);
  if (summary.blame) text += blame(*summary.blame);
  return text;
}

}  // namespace neap::replay
