// Text of an advice: the reason, the lines to paste, and its exceptions.
#include <algorithm>

#include "base/format.h"
#include "replay/advice.h"

namespace neap::replay {
namespace {

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
  if (scenario.empty.is_added())
    parts.push_back(
        format("what {} leaves free is released before the next one grows", where(scenario.empty)));
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text.empty() ? "PyTorch's defaults" : text;
}

std::string explain(const Advice& advice, const AdviceReport& report) {
  const Outcome& baseline = report.baseline_outcome;
  std::string text = mechanism(advice.scenario);
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  const Outcome& outcome = advice.outcome;
  const Interval<Bytes> range = outcome.peak_reserved_range();
  if (baseline.oom)
    return format(
        "{}: it fits, with a peak of {}, {} below the capacity, overhead {}, for about "
        "{:.0f} ms in {} driver calls.",
        text, to_string(range), report.below_capacity(outcome), outcome.fragmentation_overhead,
        outcome.driver_ms, outcome.driver_allocs + outcome.driver_frees);
  const auto saves = Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, advice.saves)));
  return format(
      "{}: the peak falls from {} to {} ({} less{}), overhead from {} to {}, "
      "for about {:.0f} ms in {} driver calls.",
      text, baseline.peak_reserved, to_string(range), percent(saves, baseline.peak_reserved),
      range.is_one_number() ? "" : " by the best estimate", baseline.fragmentation_overhead,
      outcome.fragmentation_overhead, outcome.driver_ms,
      outcome.driver_allocs + outcome.driver_frees);
}

/// Names the address orders for which the advice is wrong.
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

}  // namespace

void describe(Advice& advice, const AdviceReport& report, const Workload& workload) {
  advice.why = explain(advice, report);
  advice.environment = environment_line(advice.scenario);
  advice.code = code_line(advice.scenario);
  if (!advice.scenario.phase_pools) {
    cache::Settings effective = advice.scenario.settings;
    effective.memory_fraction = advice.scenario.fraction;
    advice.warnings = cache::needed_versions(advice.scenario.conf);
    for (std::string& sentence : cache::lint(effective, workload.uses_private_pools))
      advice.warnings.push_back(std::move(sentence));
  }
  std::string doubt = exceptions(advice, report.baseline_outcome);
  if (doubt.empty()) return;
  doubt.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(doubt.front())));
  advice.warnings.push_back(std::move(doubt));
}

std::string environment_line(const Scenario& scenario) {
  if (scenario.phase_pools || scenario.conf.empty()) return {};
  return format("export PYTORCH_CUDA_ALLOC_CONF=\"{}\"", scenario.conf);
}

std::string code_line(const Scenario& scenario) {
  if (scenario.phase_pools) return "neap train CONFIG.toml";
  std::string text;
  if (scenario.fraction > 0)
    text = format("torch.cuda.set_per_process_memory_fraction({})", scenario.fraction);
  if (scenario.empty.is_added()) {
    if (!text.empty()) text += "; ";
    text += format("torch.cuda.empty_cache()  # after {}", where(scenario.empty));
  }
  return text;
}

}  // namespace neap::replay
