#include "report/replay_result.h"

#include <algorithm>

#include "base/format.h"
#include "report/history.h"
#include "report/phase_table.h"

namespace neap::report {
namespace {

std::uint64_t number(const Json& entry, const char* key) {
  return entry.contains(key) && entry[key].is_number_unsigned() ? entry[key].get<std::uint64_t>()
                                                                : 0;
}

std::string text(const Json& entry, const char* key) {
  return entry.contains(key) && entry[key].is_string() ? entry[key].get<std::string>()
                                                       : std::string();
}

void read_range(const Json& entry, SettingOutcome& outcome) {
  if (!entry.contains("peak_reserved_range")) return;
  const Json& range = entry["peak_reserved_range"];
  if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() ||
      !range[1].is_number_unsigned())
    return;
  outcome.least_reserved = Bytes(range[0].get<std::uint64_t>());
  outcome.most_reserved = Bytes(range[1].get<std::uint64_t>());
}

void read_advice(const Json& entry, SettingOutcome& outcome) {
  outcome.why = text(entry, "why");
  for (const char* const key : {"environment", "code"})
    if (std::string line = text(entry, key); !line.empty()) outcome.how.push_back(std::move(line));
  if (!entry.contains("warnings") || !entry["warnings"].is_array()) return;
  for (const Json& warning : entry["warnings"])
    if (warning.is_string()) outcome.how.push_back("Note: " + warning.get<std::string>());
}

Result<SettingOutcome> read_outcome(const Json& entry, const std::string& place) {
  if (!entry.is_object() || !entry.contains("peak_reserved") ||
      !entry["peak_reserved"].is_number_unsigned())
    return Status(ErrorCode::kCorrupt, format("replay result: {} has no \"peak_reserved\"", place));
  SettingOutcome outcome;
  outcome.conf = text(entry, "conf");
  outcome.empty = text(entry, "empty");
  if (entry.contains("fraction") && entry["fraction"].is_number())
    outcome.fraction = entry["fraction"].get<double>();
  outcome.peak_reserved = Bytes(number(entry, "peak_reserved"));
  outcome.peak_allocated = Bytes(number(entry, "peak_allocated"));
  outcome.driver_allocs = number(entry, "driver_allocs");
  outcome.driver_frees = number(entry, "driver_frees");
  outcome.retries = number(entry, "retries");
  if (entry.contains("oom")) {
    const Json& oom = entry["oom"];
    outcome.out_of_memory = oom.is_boolean()  ? oom.get<bool>()
                            : oom.is_number() ? oom.get<double>() != 0
                                              : !oom.is_null();
  }
  read_range(entry, outcome);
  return outcome;
}

Status read_list(const Json& replay, const char* key, SettingOutcome::Kind kind,
                 std::vector<SettingOutcome>& out) {
  for (std::size_t i = 0; i < replay[key].size(); ++i) {
    const Json& entry = replay[key][i];
    NEAP_TRY_ASSIGN(SettingOutcome outcome, read_outcome(entry, format("{}[{}]", key, i)));
    outcome.kind = kind;
    if (kind == SettingOutcome::Kind::kAdvised) read_advice(entry, outcome);
    out.push_back(std::move(outcome));
  }
  return {};
}

}  // namespace

std::string SettingOutcome::label() const {
  std::string label = kind == Kind::kRecorded  ? "recorded: "
                      : kind == Kind::kAdvised ? "advice: "
                                               : "";
  label += conf.empty() ? "default" : conf;
  if (!empty.empty() && empty != "none") label += " + empty_cache: " + empty;
  if (fraction > 0) label += format(" + fraction {:.3g}", fraction);
  return label;
}

std::string SettingOutcome::reserved_text() const {
  if (least_reserved == most_reserved) return to_string(peak_reserved);
  return format("{} to {}", least_reserved, most_reserved);
}

Json SettingOutcome::to_json() const {
  return {{"kind", kind == Kind::kRecorded  ? "recorded"
                   : kind == Kind::kAdvised ? "advice"
                                            : "tried"},
          {"conf", conf},
          {"empty", empty},
          {"fraction", fraction},
          {"peak_reserved", peak_reserved.count()},
          {"peak_allocated", peak_allocated.count()},
          {"driver_allocs", driver_allocs},
          {"driver_frees", driver_frees},
          {"retries", retries},
          {"out_of_memory", out_of_memory},
          {"why", why}};
}

bool compares_with_recorded(const Json& replay) {
  const Json cut = replay.value("history_cut", Json());
  return !cut.is_object() || cut.value("comparable", Json()) != false;
}

Result<std::vector<SettingOutcome>> read_settings(const Json& replay) {
  if (!replay.is_object() || !replay.contains("what_if") || !replay["what_if"].is_array())
    return Status(ErrorCode::kCorrupt, "replay result: \"what_if\" is missing or is not a list");
  std::vector<SettingOutcome> settings;
  NEAP_TRY(read_list(replay, "what_if", SettingOutcome::Kind::kTried, settings));
  if (replay.contains("advice") && replay["advice"].is_array())
    NEAP_TRY(read_list(replay, "advice", SettingOutcome::Kind::kAdvised, settings));
  if (settings.empty() || !replay.contains("recorded") || !compares_with_recorded(replay))
    return settings;
  NEAP_TRY_ASSIGN(SettingOutcome recorded, read_outcome(replay["recorded"], "recorded"));
  recorded.kind = SettingOutcome::Kind::kRecorded;
  settings.insert(settings.begin(), std::move(recorded));
  return settings;
}

std::string settings_text(const std::vector<SettingOutcome>& settings) {
  if (settings.empty()) return {};
  std::vector<std::vector<std::string>> cells{
      {"setting", "reserved", "vs first", "allocated", "driver allocs", "frees", "retries", ""}};
  const auto first = static_cast<double>(settings[0].peak_reserved.count());
  for (const SettingOutcome& s : settings) {
    cells.push_back(
        {s.label(), s.reserved_text(),
         first > 0
             ? format("{:+.1f} %", 100 * (static_cast<double>(s.peak_reserved.count()) / first - 1))
             : "-",
         to_string(s.peak_allocated), std::to_string(s.driver_allocs),
         std::to_string(s.driver_frees), std::to_string(s.retries),
         s.out_of_memory ? "out of memory" : ""});
  }
  std::string out = aligned(cells);
  for (const SettingOutcome& s : settings) {
    if (s.why.empty() && s.how.empty()) continue;
    out += format("\n{}\n", s.label());
    if (!s.why.empty()) out += format("  {}\n", s.why);
    for (const std::string& line : s.how) out += format("    {}\n", line);
  }
  return out;
}

Status check_same_recording(const Json& replay, const std::string& replay_name,
                            const trace::DeviceRecording& device, const History& history,
                            const std::string& name) {
  if (!replay.is_object() || !replay.contains("recorded") || !replay["recorded"].is_object() ||
      !replay["recorded"].contains("events"))
    return {
        ErrorCode::kCorrupt,
        format("reading {}: replay result: \"recorded\" with \"events\" is missing", replay_name)};
  const Json& recorded = replay["recorded"];
  // Counts what a replay calls events: those of the allocator, without marks.
  const auto events = static_cast<std::uint64_t>(
      std::count_if(device.events.begin(), device.events.end(),
                    [](const trace::Event& event) { return trace::names_a_stack(event.kind); }));
  const std::uint64_t replayed = number(recorded, "events");
  const std::uint64_t ordinal = number(recorded, "device");
  // A replay that deviated from the recording has different peaks.
  const Json fidelity = replay.value("fidelity", Json::object());
  const bool exact = fidelity.is_object() &&
                     number(fidelity, "allocs") == number(fidelity, "allocs_equal") &&
                     number(fidelity, "segments") == number(fidelity, "segments_equal") &&
                     number(fidelity, "segments") > 0;
  const Bytes peak(number(recorded, "peak_reserved"));
  const bool same_peak = !exact || peak == Bytes(history.peak_reserved);
  if (replayed == events && ordinal == device.ordinal && same_peak) return {};
  return {ErrorCode::kInvalidArgument,
          format("{} is a replay of another recording than {}: it has {} events of device {} and "
                 "reserved {}, {} has {} events of device {} and reserved {}",
                 replay_name, name, replayed, ordinal, peak, name, events, device.ordinal,
                 Bytes(history.peak_reserved))};
}

}  // namespace neap::report
