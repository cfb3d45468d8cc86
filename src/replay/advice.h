// Which settings and which empty_cache would have helped: a search over what PyTorch offers, ranked.
//
// Method   Some sixty scenarios run once, with the best estimate of new segments' addresses. The
//          best of them run under every address order; they are ranked by the most that they
//          reserve under any.
//
// Cost     some sixty replays, and ten for each ranked scenario that releases segments; spread over
//          cores.
#pragma once

#include "replay/cut_history.h"
#include "replay/what_if.h"

namespace neap::replay {

/// Advice saves at least one part in this many of the peak: half a percent.
inline constexpr std::int64_t kLeastSaving = 200;

struct Advice {
  Scenario scenario;
  Outcome outcome;
  /// Peak reserved of the recorded settings − this one's; 0 when those run out of memory.
  std::int64_t saves = 0;
  Interval<std::int64_t> saves_range;  ///< over the address orders
  std::string why;                     ///< one sentence
  std::string environment;             ///< the line to paste; empty when nothing is set
  std::string code;  ///< the line for empty_cache or the fraction; empty when none
  std::vector<std::string> warnings;
};

struct AdviceOptions {
  Bytes capacity;                 ///< zero: unknown, settings that need it are left out
  std::optional<CutHistory> cut;  ///< not comparable: nothing is searched
  Bytes recorded_peak;            ///< reserved by the recording; zero: unknown
  unsigned threads = 1;
  std::size_t most = 5;
  std::size_t orders = kDefaultAddressOrders;
  std::function<void(std::size_t finished, std::size_t total)> progress;
};

struct AdviceReport {
  Scenario baseline;  ///< the recorded settings, and where the program emptied its cache
  Outcome baseline_outcome;
  Bytes capacity;  ///< zero: unknown
  /// Best first. Those that do not beat the baseline are left out; where it runs out of memory, those
  /// that do, too.
  std::vector<Advice> ranked;
  std::string note;               ///< about the ranking: what fits, or why it is empty
  std::vector<std::string> lint;  ///< about the recorded settings
  /// What is left of the capacity under the worst address order; only with a capacity.
  [[nodiscard]] Bytes below_capacity(const Outcome& outcome) const;
};

/// The settings that the search tries.
[[nodiscard]] std::vector<Scenario> candidates(const Workload& workload, Bytes capacity,
                                               Bytes recorded_peak);
[[nodiscard]] Result<AdviceReport> advise(const Workload& workload, const AdviceOptions& options);

/// Fills in `why`, `environment`, `code` and `warnings`.
void describe(Advice& advice, const AdviceReport& report, const Workload& workload);
/// `PYTORCH_CUDA_ALLOC_CONF="..."`, under the name that the version reads.
[[nodiscard]] std::string environment_line(const Scenario& scenario);
[[nodiscard]] std::string code_line(const Scenario& scenario);

}  // namespace neap::replay
