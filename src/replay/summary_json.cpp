#include "base/format.h"
#include "replay/summary.h"

namespace neap::replay {
namespace {

Json shortage(const std::optional<OutOfMemory>& oom) {
  if (!oom) return nullptr;
  return {{"event", oom->event},
          {"phase", oom->phase},
          {"need", oom->need.count()},
          {"free", oom->free.count()}};
}

Json to_json(const std::optional<CutHistory>& cut) {
  if (!cut) return nullptr;
  return {{"blocks", cut->blocks},
          {"live", cut->live.count()},
          {"reserved", cut->reserved.count()},
          {"replayed_peak", cut->replayed_peak.count()},
          {"comparable", cut->comparable()}};
}

/// The keys of every entry in `what_if`, in the documented order.
Json figures(const Scenario& scenario, const Outcome& outcome) {
  const auto reserved = outcome.peak_reserved_range();
  const auto allocs = outcome.driver_allocs_range();
  return {{"conf", scenario.conf},
          {"empty", scenario.empty.to_string()},
          {"fraction", scenario.fraction},
          {"peak_reserved", outcome.peak_reserved.count()},
          {"peak_allocated", outcome.peak_allocated.count()},
          {"driver_allocs", outcome.driver_allocs},
          {"driver_frees", outcome.driver_frees},
          {"end_reserved", outcome.end_reserved.count()},
          {"retries", outcome.retries},
          {"oom", shortage(outcome.oom)},
          {"fragmentation_at_peak", outcome.fragmentation_at_peak.count()},
          {"fragmentation_max", outcome.fragmentation_max.count()},
          {"fragmentation_overhead", outcome.fragmentation_overhead.count()},
          {"driver_ms", outcome.driver_ms},
          {"empty_cache_calls", outcome.empty_cache_calls},
          {"peak_reserved_range", {reserved.least.count(), reserved.most.count()}},
          {"driver_allocs_range", {allocs.least, allocs.most}},
          {"address_orders", outcome.orders.size()},
          {"orders_out_of_memory", outcome.orders_out_of_memory()}};
}

Json to_json(const Advice& advice, const AdviceReport& report) {
  Json entry = figures(advice.scenario, advice.outcome);
  // Settings that run out of memory have no peak to compare.
  entry["saves"] = nullptr;
  entry["saves_range"] = nullptr;
  if (!report.baseline_outcome.oom) {
    entry["saves"] = advice.saves;
    entry["saves_range"] = {advice.saves_range.least, advice.saves_range.most};
  }
  entry["below_capacity"] = nullptr;
  if (!report.capacity.is_zero())
    entry["below_capacity"] = report.below_capacity(advice.outcome).count();
  entry["why"] = advice.why;
  entry["environment"] = advice.environment;
  entry["code"] = advice.code;
  entry["warnings"] = advice.warnings;
  return entry;
}

Json to_json(const std::vector<PinGroup>& groups) {
  Json list = Json::array();
  for (const PinGroup& group : groups)
    list.push_back({{"name", group.name},
                    {"blocks", group.blocks},
                    {"live", group.live.count()},
                    {"pins_share", group.share.count()},
                    {"pins_alone", group.alone.count()}});
  return list;
}

Json to_json(const Blame& blame) {
  Json gaps = Json::array();
  for (const Gap& gap : blame.gaps)
    gaps.push_back({{"address", gap.address},
                    {"size", gap.size.count()},
                    {"segment_size", gap.segment_size.count()},
                    {"before", gap.before},
                    {"after", gap.after}});
  return {{"event", blame.event},
          {"time_ns", blame.time_ns},
          {"phase", blame.phase},
          {"reserved", blame.reserved.count()},
          {"allocated", blame.allocated.count()},
          {"releasable", blame.releasable.count()},
          {"pinned", blame.pinned.count()},
          {"by_phase", to_json(blame.by_phase)},
          {"by_size", to_json(blame.by_size)},
          {"by_stack", to_json(blame.by_stack)},
          {"gaps", gaps}};
}

}  // namespace

Json to_json(const Summary& summary) {
  const Workload& workload = *summary.workload;
  const Fidelity& fidelity = summary.fidelity;
  Json out;
  out["schema"] = kJsonSchema;
  out["recorded"] = {{"events", workload.allocator_events},
                     {"peak_reserved", fidelity.stats.peak_reserved.count()},
                     {"peak_allocated", fidelity.stats.peak_allocated.count()},
                     {"driver_allocs", fidelity.stats.device_allocs},
                     {"driver_frees", fidelity.stats.device_frees},
                     {"fragmentation_at_peak", fidelity.stats.fragmentation_at_peak.count()},
                     {"conf", workload.settings.to_string()},
                     {"policy", workload.version.name},
                     {"device", workload.device->ordinal}};
  Json divergence = nullptr;
  if (fidelity.first_divergence)
    divergence = {{"event", fidelity.first_divergence->event},
                  {"what", fidelity.first_divergence->what},
                  {"reason", fidelity.first_divergence->reason}};
  out["fidelity"] = {{"allocs", fidelity.allocs},      {"allocs_equal", fidelity.allocs_equal},
                     {"segments", fidelity.segments},  {"segments_equal", fidelity.segments_equal},
                     {"first_divergence", divergence}, {"holds", fidelity.holds()}};
  out["history_cut"] = to_json(summary.cut);
  out["recorded_settings_oom"] = shortage(summary.baseline.oom);
  out["what_if"] = Json::array();
  for (const WhatIf& line : summary.what_if)
    out["what_if"].push_back(figures(line.scenario, line.outcome));
  out["advice"] = Json::array();
  if (summary.advice)
    for (const Advice& advice : summary.advice->ranked)
      out["advice"].push_back(to_json(advice, *summary.advice));
  out["advice_note"] = nullptr;
  if (summary.advice && !summary.advice->note.empty()) out["advice_note"] = summary.advice->note;
  out["warnings"] = Json::array();
  if (summary.cut) out["warnings"].push_back(summary.cut->explanation());
  for (const std::string& note : workload.notes) out["warnings"].push_back(note);
  if (summary.advice)
    for (const std::string& note : summary.advice->lint) out["warnings"].push_back(note);
  out["phases"] = Json::array();
  for (const PhaseFigures& phase : fidelity.phases)
    out["phases"].push_back({{"name", phase.name},
                             {"runs", phase.runs},
                             {"peak_reserved", phase.peak_reserved.count()},
                             {"peak_allocated", phase.peak_allocated.count()},
                             {"fragmentation_max", phase.fragmentation_max.count()},
                             {"end_reserved", phase.end_reserved.count()},
                             {"end_allocated", phase.end_allocated.count()},
                             {"driver_allocs", phase.driver_allocs}});
  if (summary.blame) out["blame"] = to_json(*summary.blame);
  return out;
}

Result<std::vector<Scenario>> read_scenarios(std::string_view text, std::string_view name,
                                             const cache::PolicyVersion& version) {
  std::vector<Scenario> scenarios;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto brace = line.find('{');
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = format("{}:{}", name, number);
    if (brace == std::string_view::npos)
      return Status(ErrorCode::kInvalidArgument,
                    format("{}: the line is not a JSON object", place));
    line.remove_prefix(brace);
    NEAP_TRY_ASSIGN(const Json json, parse_json(line, place));
    const auto text_of = [&](const char* key) -> Result<std::string> {
      if (!json.contains(key) || json[key].is_null()) return std::string();
      if (!json[key].is_string())
        return Status(ErrorCode::kInvalidArgument, format("{}: \"{}\" is not text", place, key));
      return json[key].get<std::string>();
    };
    NEAP_TRY_ASSIGN(const std::string conf, text_of("conf"));
    NEAP_TRY_ASSIGN(const std::string empty, text_of("empty"));
    double fraction = 0;
    if (json.contains("fraction") && !json["fraction"].is_null()) {
      if (!json["fraction"].is_number())
        return Status(ErrorCode::kInvalidArgument,
                      format("{}: \"fraction\" is not a number", place));
      fraction = json["fraction"].get<double>();
    }
    auto scenario = Scenario::make(conf, empty, fraction, version);
    if (!scenario.ok()) return Status(scenario.status()).with_context("reading " + place);
    scenarios.push_back(std::move(scenario).value());
  }
  return scenarios;
}

}  // namespace neap::replay
