#include "report/perfetto.h"

#include <algorithm>

#include "base/format.h"
#include "base/json.h"

namespace neap::report {
namespace {

constexpr int kProcess = 1, kPhaseThread = 1, kDriverThread = 2;

/// Writes microseconds with nanoseconds as decimals, as the viewer expects.
std::string time_text(std::uint64_t ns) {
  return format("{}.{:03}", ns / 1000, ns % 1000);
}

class Writer {
 public:
  void add(std::string_view event) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    out_ += event;
  }
  void name_thread(int thread, std::string_view name) {
    add(format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})",
               kProcess, thread, json_text(name)));
  }
  /// A counter keeps its value until the next one, so repeated values are omitted.
  void counter(std::size_t track, const std::string& json_name, std::uint64_t ns,
               std::uint64_t bytes) {
    if (track >= last_.size()) last_.resize(track + 1, ~0ull);
    if (last_[track] == bytes) return;
    last_[track] = bytes;
    add(format(R"({{"ph":"C","pid":{},"ts":{},"name":{},"args":{{"bytes":{}}}}})", kProcess,
               time_text(ns), json_name, bytes));
  }
  std::string take() { return std::move(out_) + "\n]}\n"; }

 private:
  std::string out_ = R"({"displayTimeUnit":"ns","traceEvents":[)";
  std::vector<std::uint64_t> last_;
  bool first_ = true;
};

}  // namespace

std::string perfetto_json(const Report& report) {
  const History& h = report.history;
  const Leaves& leaves = h.leaves;
  Writer writer;
  writer.add(format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", kProcess,
                    json_text("neap: " + report.title)));
  writer.name_thread(kPhaseThread, "phases");
  writer.name_thread(kDriverThread, "driver allocations");
  for (const PhaseSpan& span : h.phases) {
    writer.add(format(
        R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"args":{{"peak reserved":{},"peak allocated":{}}}}})",
        kProcess, kPhaseThread, time_text(span.begin_ns), time_text(span.end_ns - span.begin_ns),
        json_text(span.name), span.peak_reserved, span.peak_total));
  }
  for (const DriverAllocation& d : h.driver_allocations) {
    writer.add(format(
        R"({{"ph":"i","s":"t","pid":{},"tid":{},"ts":{},"name":"driver allocation","args":{{"size":{},"reserved":{},"fragmentation":{}}}}})",
        kProcess, kDriverThread, time_text(d.time_ns), d.size, d.reserved, d.fragmentation));
  }
  std::vector<std::string> names{json_text("reserved"),
                                 json_text(report.is_run ? "in use" : "allocated")};
  for (const Layer& layer : h.layers)
    names.push_back(json_text((layer.kind == Layer::Kind::kTag ? "tag " : "allocated in ") +
                              (layer.name.empty() ? std::string("(outside phases)") : layer.name)));
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const std::uint64_t end = i + 1 < leaves.size() ? leaves.begin_ns[i + 1] : h.end_ns;
    writer.counter(0, names[0], leaves.begin_ns[i], leaves.reserved_high[i]);
    if (leaves.total_low[i] != leaves.total_high[i] && leaves.peak_ns[i] > leaves.begin_ns[i])
      writer.counter(1, names[1], leaves.begin_ns[i], leaves.total_low[i]);
    writer.counter(1, names[1], leaves.peak_ns[i], leaves.total_high[i]);
    if (leaves.total_low[i] != leaves.total_high[i] && leaves.peak_ns[i] == leaves.begin_ns[i] &&
        end > leaves.begin_ns[i] + 1)
      writer.counter(1, names[1], leaves.begin_ns[i] + (end - leaves.begin_ns[i]) / 2,
                     leaves.total_low[i]);
    for (std::size_t layer = 0; layer < leaves.layer_count; ++layer) {
      if (h.layers[layer].peak > 0)
        writer.counter(2 + layer, names[2 + layer], leaves.peak_ns[i],
                       leaves.stack[i * leaves.layer_count + layer]);
    }
  }
  return writer.take();
}

}  // namespace neap::report
