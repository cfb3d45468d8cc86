// Searches PyTorch's settings and places for empty_cache that would have reduced memory, and ranks
// them.
//
// Method   About sixty scenarios run once, with the best estimate of segment addresses. The best
//          ones run under every address order. They are ranked by the most that they reserve under
//          any order.
//
// Cost     about sixty replays, and ten per ranked scenario that releases segments, distributed
//          over cores.
#pragma once

#include "replay/cut_history.h"
#include "replay/what_if.h"

namespace neap::replay {

/// Advice saves at least this fraction of the peak: 1/200, half a percent.
inline constexpr std::int64_t kLeastSaving = 200;

struct Advice {
  Scenario scenario;
  Outcome outcome;
  /// Peak reserved under the recorded settings − under this one; 0 if the recorded settings run out
  /// of memory.
  std::int64_t saves = 0;
  Interval<std::int64_t> saves_range;  ///< over the address orders
  std::string why;                     ///< one sentence
  std::string environment;             ///< the line to paste; empty if no variable is set
  std::string code;  ///< the line for empty_cache or the fraction; empty if not needed
  std::vector<std::string> warnings;
};

struct AdviceOptions {
  Bytes capacity;                 ///< zero: unknown; settings that need it are skipped
  std::optional<CutHistory> cut;  ///< if not comparable, nothing is searched
  Bytes recorded_peak;            ///< reserved in the recording; zero: unknown
  unsigned threads = 1;
  std::size_t most = 5;
  std::size_t orders = kDefaultAddressOrders;
  std::function<void(std::size_t finished, std::size_t total)> progress;
};

struct AdviceReport {
  Scenario baseline;  ///< the recorded settings, with the program's own empty_cache calls
  Outcome baseline_outcome;
  Bytes capacity;  ///< zero: unknown
  /// Best first. Scenarios that do not beat the baseline are left out, unless the baseline runs out
  /// of memory.
  std::vector<Advice> ranked;
  std::string note;               ///< about the ranking: which settings fit, or why it is empty
  std::vector<std::string> lint;  ///< about the recorded settings
  /// Remaining capacity under the worst address order. Requires a capacity.
  [[nodiscard]] Bytes below_capacity(const Outcome& outcome) const;
};

/// The settings that the search tries.
[[nodiscard]] std::vector<Scenario> candidates(const Workload& workload, Bytes capacity,
                                               Bytes recorded_peak);
[[nodiscard]] Result<AdviceReport> advise(const Workload& workload, const AdviceOptions& options);

/// Fills in `why`, `environment`, `code` and `warnings`.
void describe(Advice& advice, const AdviceReport& report, const Workload& workload);
/// Writes `PYTORCH_CUDA_ALLOC_CONF="..."`, with the variable name that the version reads.
[[nodiscard]] std::string environment_line(const Scenario& scenario);
[[nodiscard]] std::string code_line(const Scenario& scenario);

}  // namespace neap::replay
