#include "replay/cut_history.h"

#include <algorithm>

#include "base/format.h"
#include "replay/what_if.h"

namespace neap::replay {

bool CutHistory::comparable() const {
  constexpr std::uint64_t kParts = 200;
  const Bytes apart =
      std::max(recorded_peak, replayed_peak) - std::min(recorded_peak, replayed_peak);
  return apart.count() * kParts <= recorded_peak.count();
}

std::string CutHistory::explanation() const {
  std::string text = format(
      "The history is cut: {} were reserved before its first event, {} of them live in {} blocks. "
      "What other settings give holds for the recorded window only, begun with these blocks laid "
      "out anew. The recorded settings, begun like that, reach a peak of {}, recorded were {}",
      reserved, live, blocks, replayed_peak, recorded_peak);
  if (comparable())
    return text + (reproduced ? ", so settings can be compared within the window."
                              : ". The two fit, but the fidelity is below 99.9 %: settings can be "
                                "compared roughly.");
  return text +
         ": what came before has a part in the peak, so there are no savings and no advice. "
         "Record the whole run: call torch.cuda.memory._record_memory_history before the first "
         "allocation, with a larger max_entries.";
}

Result<std::optional<CutHistory>> find_cut(const Workload& workload, const Fidelity& recorded) {
  if (workload.starts_empty()) return std::optional<CutHistory>();
  CutHistory cut;
  cut.blocks = workload.initial_blocks;
  for (const auto& segment : workload.initial_segments) {
    cut.reserved += segment.size;
    for (const auto& block : segment.blocks)
      if (block.state != cache::CachingAllocator::BlockView::State::kFree) cut.live += block.size;
  }
  NEAP_TRY_ASSIGN(const Outcome outcome,
                  run_scenario(workload, recorded_scenario(workload), kNoLimit));
  cut.reproduced = recorded.holds();
  cut.recorded_peak = recorded.stats.peak_reserved;
  cut.replayed_peak = outcome.peak_reserved;
  return std::optional(cut);
}

}  // namespace neap::replay
