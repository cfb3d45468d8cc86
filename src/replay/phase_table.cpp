#include "replay/phase_table.h"

#include <algorithm>

namespace neap::replay {

PhaseTable::PhaseTable(const Workload& workload) : w_(workload) {
  for (const std::string& name : w_.phase_names) {
    figures_.emplace_back();
    figures_.back().name = name;
  }
}

void PhaseTable::apply(const Op& op, cache::CachingAllocator& allocator) {
  account(allocator);
  PhaseFigures& figures = figures_[w_.phases[op.block].name];
  if (op.kind == OpKind::kPhaseBegin) {
    ++figures.runs;
    open_.push_back(op.block);
    return;
  }
  figures.end_reserved = std::max(figures.end_reserved, total_.reserved);
  figures.end_allocated = std::max(figures.end_allocated, total_.allocated);
  std::erase(open_, op.block);
}

cache::CacheStats PhaseTable::finish(cache::CachingAllocator& allocator) {
  account(allocator);
  return total_;
}

/// Adds the changes since the last call to the totals and to the innermost phase.
void PhaseTable::account(cache::CachingAllocator& allocator) {
  const cache::CacheStats before = total_;
  const cache::CacheStats now = allocator.stats();
  if (!open_.empty()) {
    PhaseFigures& figures = figures_[w_.phases[open_.back()].name];
    figures.peak_reserved = std::max(figures.peak_reserved, now.peak_reserved);
    figures.peak_allocated = std::max(figures.peak_allocated, now.peak_allocated);
    figures.fragmentation_max = std::max(figures.fragmentation_max, now.fragmentation_max);
    figures.driver_allocs += now.device_allocs - before.device_allocs;
  }
  total_ = now;
  if (now.peak_reserved <= before.peak_reserved) {
    total_.peak_reserved = before.peak_reserved;
    total_.fragmentation_at_peak = before.fragmentation_at_peak;
  }
  const auto keep = [&](Bytes cache::CacheStats::*peak) {
    total_.*peak = std::max(before.*peak, now.*peak);
  };
  keep(&cache::CacheStats::peak_allocated);
  keep(&cache::CacheStats::peak_requested);
  keep(&cache::CacheStats::peak_active);
  keep(&cache::CacheStats::fragmentation_max);
  keep(&cache::CacheStats::peak_reserved_without_fragmentation);
  allocator.reset_peaks();
}

}  // namespace neap::replay
