// Does Neap's allocator reproduce a recording? Every address and every segment event is compared.
//
// The recorded operations run through the cache under the recorded settings; a segment source
// answers each request with the segment that the recording got. Releases (empty_cache, retries,
// garbage collection) are applied as recorded and must hit free memory.
//
// The figures of phases come from the same run: they are those of the recording, whatever a
// simulation under the same settings gives.
//
// Threads   one replay per thread.
// Cost      30 to 80 ns per event.
#pragma once

#include <functional>
#include <optional>

#include "replay/workload.h"

namespace neap::replay {

struct Divergence {
  std::uint32_t event = 0;
  std::string what;    ///< what was recorded and what the replay did instead
  std::string reason;  ///< the likely cause
};

struct PhaseFigures {
  std::string name;
  std::uint64_t runs = 0;
  Bytes peak_reserved, peak_allocated, fragmentation_max;
  Bytes end_reserved, end_allocated;  ///< largest at the end of a run
  std::uint64_t driver_allocs = 0;
};

struct Fidelity {
  std::uint64_t allocs = 0, allocs_equal = 0;
  std::uint64_t segments = 0, segments_equal = 0;  ///< allocs, maps, frees, unmaps
  std::optional<Divergence> first_divergence;
  cache::CacheStats stats;           ///< of the recorded run, counted from the first event
  std::vector<PhaseFigures> phases;  ///< as recorded, in the order of Workload::phase_names
  /// At least 99.9 % of addresses and of segment events are equal.
  [[nodiscard]] bool holds() const {
    return 1000 * allocs_equal >= 999 * allocs && 1000 * segments_equal >= 999 * segments;
  }
};

/// Called after each operation of a replay.
using Observer = std::function<void(const Op&, const cache::CachingAllocator&)>;

struct FidelityOptions {
  Bytes capacity;                              ///< zero when unknown
  std::uint32_t stop_before_event = kNoEvent;  ///< leave the state as it is before this event
};

/// A recorded run that can be looked at where it stopped.
class RecordedRun {
 public:
  explicit RecordedRun(const Workload& workload, const FidelityOptions& options = {});
  RecordedRun(const RecordedRun&) = delete;
  RecordedRun& operator=(const RecordedRun&) = delete;
  ~RecordedRun();
  /// Runs up to the end or stop_before_event. Call once.
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
