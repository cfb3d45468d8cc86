#include "replay/advice.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/format.h"

namespace neap::replay {
namespace {

constexpr std::uint64_t kNoLimit = 1ull << 50;
/// Advice saves at least one part in this many of the peak: half a percent.
constexpr std::int64_t kLeastSaving = 200;

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
    return "temporaries of a phase are in a pool that is released at the end of the phase, and "
           "what "
           "stays is allocated apart from them";
  std::vector<std::string> parts;
  if (s.expandable_segments)
    parts.emplace_back(
        "segments grow in place, so free pieces join and "
        "serve requests of any size");
  if (s.max_split_size != cache::kUnlimited)
    parts.push_back(
        format("blocks of {} and more are not split, so they stay whole for large "
               "requests",
               s.max_split_size));
  if (s.roundup_power2_divisions != cache::Settings{}.roundup_power2_divisions)
    parts.emplace_back(
        "sizes are rounded to fewer classes, so more requests find a block that fits");
  if (s.large_segment_size != cache::Settings{}.large_segment_size)
    parts.push_back(format("requests below 10 MiB share segments of {}", s.large_segment_size));
  if (s.garbage_collection_threshold > 0)
    parts.emplace_back("segments that are idle longest are released before the limit is reached");
  if (empties(scenario.empty))
    parts.push_back(
        format("what {} leaves free is released before the next one grows", where(scenario.empty)));
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text.empty() ? "PyTorch's defaults" : text;
}

std::string explain(const Advice& advice, const Outcome& baseline) {
  std::string text = mechanism(advice.scenario);
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  const Outcome& outcome = advice.outcome;
  const Interval<Bytes> range = outcome.peak_reserved_range();
  const auto saves = Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, advice.saves)));
  return format(
      "{}: the peak falls from {} to {} ({} less{}), fragmentation overhead from {} to {}, "
      "for about {:.0f} ms in {} driver calls.",
      text, baseline.peak_reserved, to_string(range), percent(saves, baseline.peak_reserved),
      range.is_one_number() ? "" : " by the best estimate", baseline.fragmentation_overhead,
      outcome.fragmentation_overhead, outcome.driver_ms,
      outcome.driver_allocs + outcome.driver_frees);
}

/// How much a user has to change; among equal results the least wins.
int effort(const Scenario& scenario) {
  const auto keys = std::count(scenario.conf.begin(), scenario.conf.end(), ':');
  return static_cast<int>(keys) + (empties(scenario.empty) ? 1 : 0) +
         (scenario.fraction > 0 ? 2 : 0) + (scenario.phase_pools ? 3 : 0);
}

/// Scenarios that beat the baseline, best first.
class Ranking {
 public:
  explicit Ranking(const Outcome& baseline) : baseline_(baseline) {}

  /// Keeps what saves at least half a percent of the peak by the best estimate.
  void add(const Scenario& scenario, const Outcome& outcome) {
    if (outcome.oom) return;
    Advice advice;
    advice.scenario = scenario;
    advice.added_ms = std::llround(outcome.driver_ms - baseline_.driver_ms);
    set_outcome(advice, outcome);
    if (saves_enough(advice.saves)) found_.push_back(std::move(advice));
  }

  /// Replays those that would be listed under all address orders, until the list stays as it is.
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
    const auto saved = [&](Bytes peak) {
      return static_cast<std::int64_t>(baseline_.peak_reserved.count()) -
             static_cast<std::int64_t>(peak.count());
    };
    const Interval<Bytes> peak = outcome.peak_reserved_range();
    advice.saves = saved(outcome.peak_reserved);
    advice.saves_range = {saved(peak.most), saved(peak.least)};
  }

  [[nodiscard]] bool saves_enough(std::int64_t saves) const {
    // Whatever fits beats a baseline that ran out of memory.
    return baseline_.oom.has_value() ||
           saves * kLeastSaving >= static_cast<std::int64_t>(baseline_.peak_reserved.count());
  }

  /// Peaks within half a percent count as equal: then driver time and effort decide. What fails or
  /// saves too little under some order comes after what holds under all.
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

  /// One entry per allocator setting, with its best empty_cache.
  [[nodiscard]] std::vector<std::size_t> listed(std::size_t most) const {
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < found_.size() && list.size() < most; ++i) {
      const Scenario& scenario = found_[i].scenario;
      const bool known = std::any_of(list.begin(), list.end(), [&](std::size_t other) {
        return found_[other].scenario.conf == scenario.conf &&
               empties(found_[other].scenario.empty) == empties(scenario.empty);
      });
      if (!known) list.push_back(i);
    }
    return list;
  }

  const Outcome& baseline_;
  std::vector<Advice> found_;
};

/// Names the address orders under which the advice does not hold.
std::string exceptions(const Advice& advice, const Outcome& baseline) {
  std::string fails;
  std::string weak;
  for (const OrderFigures& order : advice.outcome.orders) {
    const bool saves =
        baseline.oom ||
        static_cast<std::int64_t>(order.peak_reserved.count()) * kLeastSaving <=
            static_cast<std::int64_t>(baseline.peak_reserved.count()) * (kLeastSaving - 1);
    std::string& list = order.out_of_memory ? fails : weak;
    if (order.out_of_memory || !saves) list += (list.empty() ? "" : ", ") + to_string(order.order);
  }
  std::string text;
  if (!fails.empty()) text = format("out of memory under these address orders: {}", fails);
  if (!weak.empty())
    text += format("{}saves less than half a percent under these address orders: {}",
                   text.empty() ? "" : "; ", weak);
  return text;
}

void describe(Advice& advice, const Outcome& baseline, const Workload& workload) {
  advice.why = explain(advice, baseline);
  advice.environment = environment_line(advice.scenario);
  advice.code = code_line(advice.scenario);
  if (!advice.scenario.phase_pools) {
    cache::Settings effective = advice.scenario.settings;
    effective.memory_fraction = advice.scenario.fraction;
    advice.warnings = cache::lint(effective, workload.uses_private_pools);
  }
  std::string doubt = exceptions(advice, baseline);
  if (doubt.empty()) return;
  doubt.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(doubt.front())));
  advice.warnings.push_back(std::move(doubt));
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
    // With too many kinds of phases only the groups are tried.
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
    // A limit at the recorded peak, so that idle segments are released well before it.
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
  const auto outcomes = run_scenarios(
      workload, scenarios, capacity, options.threads,
      [&](std::size_t finished) {
        if (options.progress) options.progress(finished, scenarios.size());
      },
      /*orders=*/1);
  Ranking ranking(report.baseline_outcome);
  for (std::size_t i = 0; i < scenarios.size(); ++i)
    if (outcomes[i].ok()) ranking.add(scenarios[i], *outcomes[i]);
  NEAP_TRY(ranking.settle(workload, capacity, options));
  for (Advice& advice : ranking.best(options.most)) {
    describe(advice, report.baseline_outcome, workload);
    report.ranked.push_back(std::move(advice));
  }
  return report;
}

}  // namespace neap::replay
