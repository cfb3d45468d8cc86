#include "replay/advice.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/format.h"

namespace neap::replay {
namespace {

/// How much a user must change; among equal results the smallest effort wins.
int effort(const Scenario& scenario) {
  const auto keys = std::count(scenario.conf.begin(), scenario.conf.end(), ':');
  return static_cast<int>(keys) + (scenario.empty.is_added() ? 1 : 0) +
         (scenario.fraction > 0 ? 2 : 0) + (scenario.phase_pools ? 3 : 0);
}

/// Whether `whole` does what `part` does, and perhaps more.
bool includes(const Scenario& whole, const Scenario& part) {
  const auto marked = [](const std::string& conf) { return "," + conf + ","; };
  const bool conf = part.conf.empty() || whole.settings == part.settings ||
                    marked(whole.conf).find(marked(part.conf)) != std::string::npos;
  const bool empty = !part.empty.is_added() || whole.empty.to_string() == part.empty.to_string();
  return conf && empty && (part.fraction == 0 || whole.fraction == part.fraction) &&
         (whole.phase_pools || !part.phase_pools);
}

/// Scenarios that beat the baseline, best first.
class Ranking {
 public:
  explicit Ranking(const Outcome& baseline) : baseline_(baseline) {}

  /// Keeps a scenario that, in the best estimate, saves at least half a percent of the peak.
  void add(const Scenario& scenario, const Outcome& outcome) {
    if (outcome.oom) return;
    Advice advice;
    advice.scenario = scenario;
    set_outcome(advice, outcome);
    if (saves_enough(advice.saves)) found_.push_back(std::move(advice));
  }

  /// Replays the scenarios to be listed under all address orders, until the list no longer changes.
  Status settle(const Workload& workload, Bytes capacity, const AdviceOptions& options) {
    for (;;) {
      sort();
      std::vector<std::size_t> open;
      for (const std::size_t i : listed(options.most))
        if (found_[i].outcome.released_segments && found_[i].outcome.orders.size() < options.orders)
          open.push_back(i);
      if (open.empty()) return ok_status();
      std::vector<Scenario> scenarios;
      scenarios.reserve(open.size());
      for (const std::size_t i : open) scenarios.push_back(found_[i].scenario);
      const auto outcomes =
          run_scenarios(workload, scenarios, capacity, options.threads, {}, options.orders);
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (!outcomes[i].ok()) return outcomes[i].status();
        set_outcome(found_[open[i]], *outcomes[i]);
      }
    }
  }

  [[nodiscard]] std::vector<Advice> best(std::size_t most) const {
    std::vector<Advice> list;
    for (const std::size_t i : listed(most)) list.push_back(found_[i]);
    return list;
  }

 private:
  void set_outcome(Advice& advice, const Outcome& outcome) {
    advice.outcome = outcome;
    if (baseline_.oom) return;
    const auto saved = [&](Bytes peak) {
      return static_cast<std::int64_t>(baseline_.peak_reserved.count()) -
             static_cast<std::int64_t>(peak.count());
    };
    const Interval<Bytes> peak = outcome.peak_reserved_range();
    advice.saves = saved(outcome.peak_reserved);
    advice.saves_range = {saved(peak.most), saved(peak.least)};
  }

  [[nodiscard]] bool saves_enough(std::int64_t saves) const {
    // If the baseline ran out of memory, any scenario that fits is better.
    return baseline_.oom.has_value() ||
           saves * kLeastSaving >= static_cast<std::int64_t>(baseline_.peak_reserved.count());
  }

  /// Peaks within half a percent count as equal; then driver time and effort decide. Scenarios that
  /// fail or save too little under some order come after those that work under all.
  void sort() {
    const std::uint64_t unit = std::max<std::uint64_t>(
        1, baseline_.peak_requested.count() / static_cast<std::uint64_t>(kLeastSaving));
    const auto key = [&](const Advice& advice) {
      const bool fails =
          advice.outcome.orders_out_of_memory() > 0 || !saves_enough(advice.saves_range.least);
      return std::tuple(fails, advice.outcome.peak_reserved_range().most.count() / unit,
                        std::llround(advice.outcome.driver_ms / 25.0), effort(advice.scenario));
    };
    std::stable_sort(found_.begin(), found_.end(),
                     [&](const Advice& a, const Advice& b) { return key(a) < key(b); });
  }

  /// Lists one entry per allocator setting, with its best empty_cache. An entry that includes a
  /// better one is left out, because what it adds is of no use.
  [[nodiscard]] std::vector<std::size_t> listed(std::size_t most) const {
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < found_.size() && list.size() < most; ++i) {
      const Scenario& scenario = found_[i].scenario;
      const bool known = std::any_of(list.begin(), list.end(), [&](std::size_t other) {
        const Scenario& better = found_[other].scenario;
        return includes(scenario, better) || (better.conf == scenario.conf &&
                                              better.empty.is_added() == scenario.empty.is_added());
      });
      if (!known) list.push_back(i);
    }
    return list;
  }

  const Outcome& baseline_;
  std::vector<Advice> found_;
};

/// Counts the settings that fit where the recorded ones run out of memory. If none fits, tells how
/// much is missing.
Result<std::string> fitting(const Workload& workload, const std::vector<Scenario>& scenarios,
                            const std::vector<Result<Outcome>>& outcomes, Bytes capacity) {
  std::size_t fit = 0;
  std::size_t furthest = 0;
  const auto reached = [&](std::size_t i) {
    return outcomes[i].ok() && outcomes[i]->oom ? outcomes[i]->oom->event : 0;
  };
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    fit += outcomes[i].ok() && !outcomes[i]->oom ? 1u : 0u;
    if (reached(i) > reached(furthest)) furthest = i;
  }
  if (fit > 0)
    return format("{} of {} tried settings fit into {}. The lowest peak comes first.", fit,
                  outcomes.size(), capacity);
  NEAP_TRY_ASSIGN(const Outcome ample,
                  run_scenario(workload, recorded_scenario(workload), kNoLimit));
  const Bytes need = ample.peak_allocated;
  std::string text =
      format("None of the {} tried settings fits into {}. ", outcomes.size(), capacity);
  text += need > capacity
              ? format(
                    "What the program has allocated at its peak, {}, is {} more than that: no "
                    "setting can make it fit.",
                    need, need - capacity)
              : format("The program has {} allocated at its peak, {} less than that.", need,
                       capacity - need);
  if (!outcomes[furthest].ok() || !outcomes[furthest]->oom) return text;
  const OutOfMemory& oom = *outcomes[furthest]->oom;
  return text +
         format(" {} gets furthest, to event {} of {} in {}: it needs {} there, {} are free.",
                scenarios[furthest].name(), oom.event, workload.device->events.size(),
                without_prefix(oom.phase), oom.need, oom.free);
}

}  // namespace

std::vector<Scenario> candidates(const Workload& workload, Bytes capacity, Bytes recorded_peak) {
  const std::vector<std::string> confs = {"",
                                          "expandable_segments:True",
                                          "max_split_size_mb:64",
                                          "max_split_size_mb:128",
                                          "max_split_size_mb:256",
                                          "max_split_size_mb:512",
                                          "roundup_power2_divisions:4",
                                          "roundup_power2_divisions:8",
                                          "roundup_power2_divisions:16",
                                          "expandable_segments:True,roundup_power2_divisions:8",
                                          "large_segment_size_mb:64",
                                          "large_segment_size_mb:256"};
  // Who changes a setting keeps the calls of empty_cache that the program makes.
  const bool empties = std::any_of(workload.ops.begin(), workload.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kRecordedEmptyCache;
  });
  const std::string as_is = empties ? "recorded" : "none";
  std::vector<std::string> empties_after = {as_is};
  std::vector<std::string> single;
  if (!workload.phase_names.empty()) {
    empties_after.insert(empties_after.end(), {"inference", "training", "all"});
    for (const std::string& name : workload.phase_names) single.emplace_back(without_prefix(name));
    // With many kinds of phases, try only groups of phases.
    if (single.size() > 12) single.clear();
  }
  std::vector<Scenario> all;
  // Skip settings that the version does not know.
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
  if (!capacity.is_zero() && recorded_peak <= capacity) {
    // A limit at the recorded peak releases idle segments early.
    const double fraction = std::ceil(100.0 * static_cast<double>(recorded_peak.count()) /
                                      static_cast<double>(capacity.count())) /
                            100.0;
    for (const char* threshold : {"0.6", "0.8"})
      add(format("garbage_collection_threshold:{}", threshold), as_is, std::min(fraction, 1.0));
  }
  if (!workload.phase_names.empty()) {
    // Neap includes its own PyTorch.
    auto scenario = Scenario::make("expandable_segments:True", "none", 0, cache::PolicyVersion{});
    if (scenario.ok()) {
      scenario->version = workload.version;
      scenario->phase_pools = true;
      scenario->conf = "neap phase pools";
      all.push_back(std::move(scenario).value());
    }
  }
  return all;
}

Bytes AdviceReport::below_capacity(const Outcome& outcome) const {
  return saturating_sub(capacity, outcome.peak_reserved_range().most);
}

Result<AdviceReport> advise(const Workload& workload, const AdviceOptions& options) {
  const Bytes capacity = options.capacity.is_zero() ? kNoLimit : options.capacity;
  AdviceReport report;
  report.capacity = options.capacity;
  report.baseline = recorded_scenario(workload);
  NEAP_TRY_ASSIGN(report.baseline_outcome, run_scenario(workload, report.baseline, capacity));
  report.lint = cache::lint(workload.settings, workload.uses_private_pools);
  if (options.cut && !options.cut->comparable()) {
    report.note = "No advice: the history is cut, and what came before has a part in the peak.";
    return report;
  }
  const Outcome& baseline = report.baseline_outcome;
  const auto scenarios = candidates(workload, options.capacity,
                                    baseline.oom ? options.capacity : baseline.peak_reserved);
  const auto outcomes = run_scenarios(
      workload, scenarios, capacity, options.threads,
      [&](std::size_t finished) {
        if (options.progress) options.progress(finished, scenarios.size());
      },
      /*orders=*/1);
  Ranking ranking(baseline);
  for (std::size_t i = 0; i < scenarios.size(); ++i)
    if (outcomes[i].ok()) ranking.add(scenarios[i], *outcomes[i]);
  NEAP_TRY(ranking.settle(workload, capacity, options));
  for (Advice& advice : ranking.best(options.most)) {
    describe(advice, report, workload);
    report.ranked.push_back(std::move(advice));
  }
  if (baseline.oom) {
    NEAP_TRY_ASSIGN(report.note, fitting(workload, scenarios, outcomes, options.capacity));
  } else if (report.ranked.empty()) {
    report.note = "Nothing that PyTorch offers lowers the peak by half a percent or more.";
  } else if (options.recorded_peak * kLeastSaving < baseline.peak_reserved * (kLeastSaving - 1) &&
             !options.recorded_peak.is_zero()) {
    report.note = format(
        "The recording reserved {}, most likely under a tighter limit. Without it the recorded "
        "settings reserve {}, and advice is compared with these.",
        options.recorded_peak, baseline.peak_reserved);
  }
  return report;
}

}  // namespace neap::replay
