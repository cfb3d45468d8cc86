#include "report/load_report.h"

#include <algorithm>
#include <charconv>

#include "base/file.h"
#include "base/format.h"
#include "report/html.h"
#include "trace/reader.h"

namespace neap::report {
namespace {

constexpr std::string_view kPlanKey = "plan";

Result<const trace::DeviceRecording*> choose_device(const trace::Recording& recording,
                                                    std::optional<std::uint16_t> ordinal) {
  const trace::DeviceRecording* chosen = nullptr;
  std::string known;
  for (const trace::DeviceRecording& device : recording.devices) {
    known += (known.empty() ? "" : ", ") + std::to_string(device.ordinal);
    if (ordinal ? device.ordinal == *ordinal
                : chosen == nullptr || device.events.size() > chosen->events.size())
      chosen = &device;
  }
  if (chosen != nullptr) return chosen;
  if (ordinal)
    return Status(ErrorCode::kInvalidArgument, format("the trace has no device {}; it has {}",
                                                      *ordinal, known.empty() ? "none" : known));
  return Status(ErrorCode::kInvalidArgument, "the trace holds no events and no segments");
}

/// Index of the event whose result is shown.
Result<std::uint64_t> event_at(std::string_view moment, const trace::DeviceRecording& device,
                               const History& history) {
  const std::uint64_t last = device.events.empty() ? 0 : device.events.size() - 1;
  if (moment == "peak") return history.peak_reserved_event;
  if (moment == "peak-allocated") return history.peak_total_event;
  if (moment == "end") return last;
  if (!moment.empty() && moment.front() == '#') {
    std::uint64_t index = 0;
    const auto [end, error] =
        std::from_chars(moment.data() + 1, moment.data() + moment.size(), index);
    if (error != std::errc() || end != moment.data() + moment.size() || index > last)
      return Status(ErrorCode::kInvalidArgument,
                    format("event \"{}\" is not between #0 and #{}", moment, last));
    return index;
  }
  NEAP_TRY_ASSIGN(const double seconds, parse_duration(moment));
  NEAP_TRY(check_moment("--at", seconds, history));
  const auto ns = static_cast<std::uint64_t>(seconds * 1e9);
  const auto it = std::upper_bound(
      device.events.begin(), device.events.end(), ns,
      [](std::uint64_t time, const trace::Event& event) { return time < event.time_ns; });
  return it == device.events.begin() ? 0
                                     : static_cast<std::uint64_t>(it - device.events.begin()) - 1;
}

std::string map_label(std::string_view moment, const SegmentMap& map) {
  if (moment == "peak") return "at the peak of reserved";
  if (moment == "peak-allocated") return "at the peak of allocated";
  if (moment == "end") return "at the end";
  return format("at {}", duration_text(static_cast<double>(map.time_ns) * 1e-9));
}

Status add_maps(const trace::Recording& recording, const trace::DeviceRecording& device,
                const LoadOptions& options, History& history) {
  std::vector<std::pair<std::uint64_t, std::string>> moments;
  for (const std::string& moment : options.at) {
    NEAP_TRY_ASSIGN(const std::uint64_t event, event_at(moment, device, history));
    moments.emplace_back(event, moment);
  }
  if (options.at.empty()) {
    if (history.driver_allocs == 0 && device.segments.empty()) return {};
    moments.emplace_back(history.peak_reserved_event, "peak");
  }
  std::stable_sort(moments.begin(), moments.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  HistoryOptions second;
  second.max_leaves = 1024;
  for (const auto& [event, moment] : moments) second.capture_events.push_back(event);
  history.maps = build_history(recording, device, second).maps;
  for (std::size_t i = 0; i < history.maps.size(); ++i)
    history.maps[i].label = map_label(moments[i].second, history.maps[i]);
  return {};
}

void add_notes(const trace::Recording& recording, const trace::DeviceRecording& device,
               Report& report) {
  std::vector<std::string>& notes = report.notes;
  if (!recording.truncated.empty()) notes.push_back(recording.truncated);
  for (const std::string& warning : recording.warnings) notes.push_back(warning);
  if (recording.dropped_events > 0)
    notes.push_back(format("{} events were dropped while recording", recording.dropped_events));
  if (report.history.started_in_the_middle || device.overflowed)
    notes.push_back(
        "the trace begins in the middle of the run (a ring buffer was cut); earlier blocks are "
        "rebuilt from the final segments and shown as \"outside phases\"");
  if (report.history.unmatched_frees > 0)
    notes.push_back(
        format("{} frees have no allocation in the trace", report.history.unmatched_frees));
  if (!report.is_run && report.history.peak_total > report.history.peak_reserved)
    notes.push_back(
        format("more is allocated ({}) than reserved ({}): the file is damaged, or events "
               "are missing; do not rely on these numbers",
               Bytes(report.history.peak_total), Bytes(report.history.peak_reserved)));
  if (!device.has_times)
    notes.push_back("the file has no time stamps; time is the event's index in ns");
  if (recording.devices.size() > 1)
    notes.push_back(format("device {} of {} is shown; --device chooses another", device.ordinal,
                           recording.devices.size()));
}

Result<PlanSummary> read_plan(std::string_view text, std::string_view where) {
  NEAP_TRY_ASSIGN(const Json json, parse_json(text, where));
  auto plan = PlanSummary::from_json(json);
  if (!plan.ok()) return Status(plan.status()).with_context(format("reading {}", where));
  return plan;
}

}  // namespace

Status check_moment(std::string_view option, double seconds, const History& history) {
  const double length = static_cast<double>(history.end_ns) * 1e-9;
  // Also accept the printed length of the recording, which may have been rounded up.
  if (seconds <= length || duration_text(seconds) == duration_text(length)) return {};
  return {ErrorCode::kInvalidArgument,
          format("{} {} is after the end of the recording, which is {} long", option,
                 duration_text(seconds), duration_text(length))};
}

Result<double> parse_duration(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double scale = unit == "s"     ? 1
                       : unit == "ms"  ? 1e-3
                       : unit == "us"  ? 1e-6
                       : unit == "ns"  ? 1e-9
                       : unit == "min" ? 60
                                       : 0;
  if (error != std::errc() || scale == 0 || !(value >= 0) || !(value * scale < 1e9))
    return Status(ErrorCode::kInvalidArgument,
                  format("\"{}\" is not a moment: write a time with its unit (3.2s, 120ms, 15us, "
                         "2min), peak, peak-allocated, end, or an event (#4711)",
                         text));
  return value * scale;
}

Result<Report> make_report(const trace::Recording& recording, std::string title,
                           std::optional<PlanSummary> plan, const std::vector<PhaseRecord>& records,
                           const LoadOptions& options) {
  NEAP_TRY_ASSIGN(const trace::DeviceRecording* const device,
                  choose_device(recording, options.device));
  Report report;
  report.title = std::move(title);
  HistoryOptions first;
  first.max_leaves = options.max_leaves;
  report.history = build_history(recording, *device, first);
  History& history = report.history;
  report.is_run = recording.source == trace::Source::kNeap &&
                  std::any_of(history.layers.begin(), history.layers.end(),
                              [](const Layer& l) { return l.kind == Layer::Kind::kTag; });
  NEAP_TRY(add_maps(recording, *device, options, history));
  report.plan = std::move(plan);
  const PlanSummary* const planned = report.plan ? &*report.plan : nullptr;
  report.table = records.empty() ? PhaseTable::from_history(history, planned)
                                 : PhaseTable::from_records(records, planned);
  report.moves = MoveTable::from_records(records);
  if (report.plan) {
    Bytes peak(history.physical ? history.peak_reserved : 0);
    peak = std::max(peak, peak_under(*report.plan, records));
    if (peak.is_zero()) peak = Bytes(history.peak_reserved);
    report.lines = MemoryLines::of(*report.plan, peak);
  }
  report.subtitle = format(
      "{}, device {}, {} events, {}{}",
      recording.source == trace::Source::kNeap ? "Neap trace" : "PyTorch memory snapshot",
      device->ordinal, history.events, duration_text(static_cast<double>(history.end_ns) * 1e-9),
      recording.settings.conf.empty() ? "" : ", settings " + recording.settings.conf);
  add_notes(recording, *device, report);
  return report;
}

namespace {

// For a run that was configured to write no trace.
Result<Report> report_without_trace(const std::filesystem::path& run) {
  const auto has = [&](std::string_view file) {
    std::error_code ignored;
    return std::filesystem::exists(run / file, ignored);
  };
  if (!has(kPlanFile) || !has(kPhasesFile))
    return Status(ErrorCode::kNotFound,
                  format("{} is not a run's folder: it has no {}", run.string(), kTraceFile));
  Report report;
  report.title = std::filesystem::absolute(run / "").parent_path().filename().string();
  report.subtitle = format("a run without {}: memory by phase, not over time", kTraceFile);
  report.is_run = true;
  NEAP_TRY_ASSIGN(const std::string text, read_file(run / kPlanFile, read_limits::kPlan));
  NEAP_TRY_ASSIGN(report.plan, read_plan(text, (run / kPlanFile).string()));
  NEAP_TRY_ASSIGN(const std::vector<PhaseRecord> records, PhaseLog::read(run));
  report.table = PhaseTable::from_records(records, &*report.plan);
  report.moves = MoveTable::from_records(records);
  Bytes peak;
  for (const PhaseRecord& record : records) peak = std::max(peak, record.peak);
  report.lines = MemoryLines::of(*report.plan, peak);
  NEAP_TRY_ASSIGN(report.training, load_training(run));
  return report;
}

}  // namespace

Result<Report> load_report(const std::filesystem::path& input, const LoadOptions& options) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(input, ignored);
  const std::filesystem::path trace_path = is_folder ? input / kTraceFile : input;
  if (is_folder && !std::filesystem::exists(trace_path, ignored))
    return report_without_trace(input);
  trace::ReadOptions reading;
  reading.progress = options.progress;
  NEAP_TRY_ASSIGN(const trace::Recording recording, trace::read(trace_path, reading));

  std::vector<std::string> notes;
  std::optional<PlanSummary> plan;
  std::vector<PhaseRecord> records;
  const std::filesystem::path plan_path = input / kPlanFile;
  if (is_folder && std::filesystem::exists(plan_path, ignored)) {
    NEAP_TRY_ASSIGN(const std::string text, read_file(plan_path, read_limits::kPlan));
    NEAP_TRY_ASSIGN(plan, read_plan(text, plan_path.string()));
  } else if (const std::string_view text = recording.metadata_value(kPlanKey); !text.empty()) {
    NEAP_TRY_ASSIGN(plan, read_plan(text, trace_path.string() + ", metadata \"plan\""));
  } else if (is_folder) {
    notes.push_back(
        format("{} has no {}: nothing is compared with a plan", input.string(), kPlanFile));
  }
  if (is_folder && std::filesystem::exists(input / kPhasesFile, ignored)) {
    NEAP_TRY_ASSIGN(records, PhaseLog::read(input));
  } else if (is_folder) {
    notes.push_back(
        format("{} has no {}: the table comes from the trace", input.string(), kPhasesFile));
  }
  const std::filesystem::path named =
      is_folder ? std::filesystem::absolute(input / "").parent_path() : input;
  auto report =
      make_report(recording, named.filename().string(), std::move(plan), records, options);
  if (!report.ok()) return Status(report.status()).with_context("reporting on " + input.string());
  report->notes.insert(report->notes.end(), notes.begin(), notes.end());
  if (is_folder) {
    NEAP_TRY_ASSIGN(report->training, load_training(input));
  }
  if (!options.replay.empty()) {
    NEAP_TRY_ASSIGN(const std::string text, read_file(options.replay, read_limits::kPlan));
    NEAP_TRY_ASSIGN(const Json json, parse_json(text, options.replay.string()));
    NEAP_TRY_ASSIGN(const trace::DeviceRecording* const device,
                    choose_device(recording, options.device));
    auto settings = read_settings(json);
    if (!settings.ok())
      return Status(settings.status()).with_context("reading " + options.replay.string());
    NEAP_TRY(check_same_recording(json, options.replay.string(), *device, report->history,
                                  input.string()));
    report->settings = std::move(settings).value();
    if (report->settings.empty())
      report->notes.push_back(
          format("{} holds no other settings: its replay tried none, and it gave no advice. "
                 "`neap replay INPUT --json --conf SETTING` tries one",
                 options.replay.string()));
    else if (!compares_with_recorded(json))
      report->notes.push_back(
          "the history is cut, and what came before it has a part in the recorded peak: the "
          "settings "
          "compare with each other only, in the recorded window");
  }
  return report;
}

Status write_report(const std::filesystem::path& run, const std::filesystem::path& page) {
  NEAP_TRY_ASSIGN(const Report report, load_report(run));
  NEAP_TRY_ASSIGN(const std::string html, report_html(report));
  return write_file_atomic(page, html);
}

}  // namespace neap::report
