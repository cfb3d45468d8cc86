// Checks whether Neap's allocator reproduces a recording: every address and every segment event is
// compared.
//
// The recorded operations run through the cache with the recorded settings. A segment source
// answers each request with the recorded segment. Releases (empty_cache, retries, garbage
// collection) are applied as recorded and must find free memory.
//
// Figures of phases come from the same run. They describe the recording, which may differ from a
// simulation with the same settings.
//
// Threads   one replay per thread.
//
// Cost      30 to 80 ns per event.
#pragma once

#include <functional>
#include <optional>

#include "replay/workload.h"

namespace neap::replay {

struct Divergence {
  std::uint32_t event = 0;
  std::string what;    ///< what was recorded, and what the replay did instead
  std::string reason;  ///< the likely cause
};

struct PhaseFigures {
  std::string name;
  std::uint64_t runs = 0;
  Bytes peak_reserved, peak_allocated, fragmentation_max;
  Bytes end_reserved, end_allocated;  ///< maximum over the ends of its runs
  std::uint64_t driver_allocs = 0;
};

struct Fidelity {
  std::uint64_t allocs = 0, allocs_equal = 0;
  std::uint64_t segments = 0, segments_equal = 0;  ///< allocs, maps, frees and unmaps
  std::optional<Divergence> first_divergence;
  cache::CacheStats stats;           ///< of the recorded run, from the first event on
  std::vector<PhaseFigures> phases;  ///< as recorded, in the order of Workload::phase_names
  /// Whether at least 99.9 % of addresses and of segment events are equal.
  [[nodiscard]] bool holds() const {
    return 1000 * allocs_equal >= 999 * allocs && 1000 * segments_equal >= 999 * segments;
  }
};

/// Called after each operation of a replay.
using Observer = std::function<void(const Op&, const cache::CachingAllocator&)>;

struct FidelityOptions {
  Bytes capacity;                              ///< zero if unknown
  std::uint32_t stop_before_event = kNoEvent;  ///< stop before this event
};

/// A recorded run whose state can be inspected where it stopped.
class RecordedRun {
 public:
  explicit RecordedRun(const Workload& workload, const FidelityOptions& options = {});
  RecordedRun(const RecordedRun&) = delete;
  RecordedRun& operator=(const RecordedRun&) = delete;
  ~RecordedRun();
  /// Runs to the end or to stop_before_event. Call it once.
  Status run(const Observer& observer = {});
  [[nodiscard]] const Fidelity& fidelity() const;
  [[nodiscard]] const cache::CachingAllocator& allocator() const;
  /// Number of the live block at an address of this run.
  [[nodiscard]] std::optional<std::uint32_t> block_at(cache::Address address) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

[[nodiscard]] Result<Fidelity> check_fidelity(const Workload& workload,
                                              const FidelityOptions& options = {});

}  // namespace neap::replay
