// Collects the figures of each phase while the recorded run advances. Private to replay/.
#pragma once

#include <vector>

#include "replay/fidelity.h"

namespace neap::replay {

class PhaseTable {
 public:
  explicit PhaseTable(const Workload& workload);
  /// Call at each phase mark, in the order of the marks.
  void apply(const Op& op, cache::CachingAllocator& allocator);
  /// Call once at the end of the run. Each mark resets the allocator's peaks; the result has the
  /// peaks of the whole run.
  [[nodiscard]] cache::CacheStats finish(cache::CachingAllocator& allocator);
  [[nodiscard]] const std::vector<PhaseFigures>& figures() const { return figures_; }

 private:
  void account(cache::CachingAllocator& allocator);

  const Workload& w_;
  std::vector<PhaseFigures> figures_;
  std::vector<std::uint32_t> open_;  ///< open runs of phases, innermost last
  cache::CacheStats total_;
};

}  // namespace neap::replay
