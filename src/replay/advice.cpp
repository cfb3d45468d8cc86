#include "replay/advice.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::replay {
namespace {

constexpr std::uint64_t kNoLimit = 1ull << 50;

std::string percent(Bytes part, Bytes whole) {
  return whole.is_zero() ? "0 %"
                         : format("{:.1f} %", 100.0 * static_cast<double>(part.count()) /
                                                  static_cast<double>(whole.count()));
}

std::string where(const EmptyPolicy& policy) {
  switch (policy.kind) {
    case EmptyPolicy::Kind::kInference:
      return "each inference phase";
    case EmptyPolicy::Kind::kTraining:
      return "each training phase";
    case EmptyPolicy::Kind::kAll:
      return "each phase";
    default:
      return policy.to_string();
  }
}

bool empties(const EmptyPolicy& policy) {
  return policy.kind != EmptyPolicy::Kind::kNone && policy.kind != EmptyPolicy::Kind::kRecorded;
}

std::string mechanism(const Scenario& scenario) {
  const cache::Settings& s = scenario.settings;
  if (scenario.phase_pools)
    return "temporaries of a phase live in a pool whose pages leave at the phase's end, and what "
           "stays is laid out apart from them";
  std::vector<std::string> parts;
  if (s.expandable_segments)
    parts.emplace_back(
        "segments grow instead of standing side by side, so free pieces join and "
        "serve requests of any size");
  if (s.max_split_size != cache::kUnlimited)
    parts.push_back(
        format("blocks of {} and more are not cut up, so they stay whole for large "
               "requests",
               s.max_split_size));
  if (s.roundup_power2_divisions != cache::Settings{}.roundup_power2_divisions)
    parts.emplace_back(
        "sizes are rounded to fewer classes, so more requests find a block that fits");
  if (s.large_segment_size != cache::Settings{}.large_segment_size)
    parts.push_back(format("requests below 10 MiB share segments of {}", s.large_segment_size));
  if (s.garbage_collection_threshold > 0)
    parts.emplace_back("segments that lie idle longest go back before the limit is reached");
  if (empties(scenario.empty))
    parts.push_back(
        format("what {} leaves free goes back before the next one grows", where(scenario.empty)));
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text.empty() ? "PyTorch's defaults" : text;
}

std::string explain(const Advice& advice, const Outcome& baseline) {
  std::string text = mechanism(advice.scenario);
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  const Outcome& outcome = advice.outcome;
  const auto saves = Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, advice.saves)));
  return format(
      "{}: the peak falls from {} to {} ({} less), fragmentation overhead from {} to {}, "
      "for about {:.0f} ms in {} driver calls.",
      text, baseline.peak_reserved, outcome.peak_reserved, percent(saves, baseline.peak_reserved),
      baseline.fragmentation_overhead, outcome.fragmentation_overhead, outcome.driver_ms,
      outcome.driver_allocs + outcome.driver_frees);
}

/// How much a person has to change; equal results prefer little.
int effort(const Scenario& scenario) {
  const auto keys = std::count(scenario.conf.begin(), scenario.conf.end(), ':');
  return static_cast<int>(keys) + (empties(scenario.empty) ? 1 : 0) +
         (scenario.fraction > 0 ? 2 : 0) + (scenario.phase_pools ? 3 : 0);
}

}  // namespace

std::string environment_line(const Scenario& scenario) {
  if (scenario.phase_pools || scenario.conf.empty()) return {};
  return format("export PYTORCH_CUDA_ALLOC_CONF=\"{}\"", scenario.conf);
}

std::string code_line(const Scenario& scenario) {
  if (scenario.phase_pools) return "neap train CONFIG.toml";
  std::string text;
  if (scenario.fraction > 0)
    text = format("torch.cuda.set_per_process_memory_fraction({})", scenario.fraction);
  if (empties(scenario.empty)) {
    if (!text.empty()) text += "; ";
    text += format("torch.cuda.empty_cache()  # after {}", where(scenario.empty));
  }
  return text;
}

std::vector<Scenario> candidates(const Workload& workload, Bytes capacity, Bytes recorded_peak) {
  std::vector<std::string> confs = {"",
                                    "expandable_segments:True",
                                    "max_split_size_mb:64",
                                    "max_split_size_mb:128",
                                    "max_split_size_mb:256",
                                    "max_split_size_mb:512",
                                    "roundup_power2_divisions:4",
                                    "roundup_power2_divisions:8",
                                    "roundup_power2_divisions:16",
                                    "expandable_segments:True,roundup_power2_divisions:8"};
  if (workload.version.large_segment_size_key) {
    confs.emplace_back("large_segment_size_mb:64");
    confs.emplace_back("large_segment_size_mb:256");
  }
  std::vector<std::string> empties_after = {"none"};
  std::vector<std::string> single;
  if (!workload.phase_names.empty()) {
    empties_after.insert(empties_after.end(), {"inference", "training", "all"});
    for (const std::string& name : workload.phase_names) single.emplace_back(without_prefix(name));
    // A program with a hundred kinds of phases is tried with its groups only.
    if (single.size() > 12) single.clear();
  }
  std::vector<Scenario> all;
  const auto add = [&](const std::string& conf, const std::string& empty, double fraction) {
    auto scenario = Scenario::make(conf, empty, fraction, workload.version);
    if (scenario.ok()) all.push_back(std::move(scenario).value());
  };
  for (const std::string& conf : confs)
    for (const std::string& empty : empties_after) add(conf, empty, 0);
  for (const std::string& name : single) {
    add("", name, 0);
    add("expandable_segments:True", name, 0);
  }
  if (!capacity.is_zero() && recorded_peak < capacity) {
    // A limit at the recorded peak, so that idle segments go back well before it.
    const double fraction = std::ceil(100.0 * static_cast<double>(recorded_peak.count()) /
                                      static_cast<double>(capacity.count())) /
                            100.0;
    for (const char* threshold : {"0.6", "0.8"})
      add(format("garbage_collection_threshold:{}", threshold), "none", std::min(fraction, 1.0));
  }
  if (!workload.phase_names.empty()) {
    auto scenario = Scenario::make("expandable_segments:True", "none", 0, workload.version);
    if (scenario.ok()) {
      scenario->phase_pools = true;
      scenario->conf = "neap phase pools";
      all.push_back(std::move(scenario).value());
    }
  }
  return all;
}

Result<AdviceReport> advise(const Workload& workload, const AdviceOptions& options) {
  const Bytes capacity = options.capacity.is_zero() ? Bytes(kNoLimit) : options.capacity;
  AdviceReport report;
  report.baseline.conf = workload.recording->settings.conf;
  report.baseline.settings = workload.settings;
  report.baseline.version = workload.version;
  report.baseline.empty = EmptyPolicy::parse("recorded");
  NEAP_TRY_ASSIGN(report.baseline_outcome, run_scenario(workload, report.baseline, capacity));
  report.lint = cache::lint(workload.settings, workload.uses_private_pools);

  const auto scenarios =
      candidates(workload, options.capacity, report.baseline_outcome.peak_reserved);
  const auto outcomes =
      run_scenarios(workload, scenarios, capacity, options.threads, [&](std::size_t finished) {
        if (options.progress) options.progress(finished, scenarios.size());
      });
  std::vector<Advice> found;
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    if (!outcomes[i].ok() || outcomes[i]->oom) continue;
    Advice advice;
    advice.scenario = scenarios[i];
    advice.outcome = *outcomes[i];
    advice.saves = static_cast<std::int64_t>(report.baseline_outcome.peak_reserved.count()) -
                   static_cast<std::int64_t>(advice.outcome.peak_reserved.count());
    advice.added_ms = std::llround(advice.outcome.driver_ms - report.baseline_outcome.driver_ms);
    // A baseline that ran out of memory is beaten by whatever fits.
    const bool rescues = report.baseline_outcome.oom.has_value();
    if (!rescues && advice.saves * 200 <
                        static_cast<std::int64_t>(report.baseline_outcome.peak_reserved.count()))
      continue;  // less than half a percent is no advice
    found.push_back(std::move(advice));
  }
  // Peaks within half a percent count as equal: then driver time and effort decide.
  const auto bucket = [&](const Advice& advice) {
    const std::uint64_t unit =
        std::max<std::uint64_t>(1, report.baseline_outcome.peak_requested.count() / 200);
    return advice.outcome.peak_reserved.count() / unit;
  };
  std::stable_sort(found.begin(), found.end(), [&](const Advice& a, const Advice& b) {
    if (bucket(a) != bucket(b)) return bucket(a) < bucket(b);
    const auto time = [](const Advice& x) { return std::llround(x.outcome.driver_ms / 25.0); };
    if (time(a) != time(b)) return time(a) < time(b);
    return effort(a.scenario) < effort(b.scenario);
  });
  // One entry for each way of setting the allocator; its best empty_cache stands for the rest.
  for (Advice& advice : found) {
    if (report.ranked.size() == options.most) break;
    const bool known =
        std::any_of(report.ranked.begin(), report.ranked.end(), [&](const Advice& a) {
          return a.scenario.conf == advice.scenario.conf &&
                 empties(a.scenario.empty) == empties(advice.scenario.empty);
        });
    if (known) continue;
    advice.why = explain(advice, report.baseline_outcome);
    advice.environment = environment_line(advice.scenario);
    advice.code = code_line(advice.scenario);
    cache::Settings effective = advice.scenario.settings;
    effective.memory_fraction = advice.scenario.fraction;
    if (!advice.scenario.phase_pools)
      advice.warnings = cache::lint(effective, workload.uses_private_pools);
    report.ranked.push_back(std::move(advice));
  }
  return report;
}

}  // namespace neap::replay
