// Finds what keeps memory from being released: at one time of the recorded run, how much free
// memory each live block pins in its segment.
//
// Model     Memory is released in units: an ordinary segment as a whole, an expandable one page by
//           page. A unit with a live block is pinned. Its free bytes are attributed to its live
//           blocks in equal parts (share). If one group holds the unit alone, the bytes are also
//           attributed to that group (alone): they would be released without it.
//
// Cost      one replay up to that time, then one pass over the blocks.
#pragma once

#include "replay/fidelity.h"

namespace neap::replay {

struct PinGroup {
  std::string name;
  std::uint64_t blocks = 0;
  Bytes live;
  Bytes share;
  Bytes alone;
};

struct Gap {
  cache::Address address = 0;
  Bytes size;
  Bytes segment_size;
  std::string before, after;  ///< the neighbouring live blocks
};

struct Blame {
  std::uint32_t event = 0;
  std::uint64_t time_ns = 0;
  std::string phase;
  Bytes reserved, allocated, active;
  Bytes releasable;                ///< free units, which empty_cache would release
  Bytes pinned;                    ///< free bytes in units with a live block
  std::vector<PinGroup> by_phase;  ///< by the phase in which the block was born; most pinned first
  std::vector<PinGroup> by_size;
  std::vector<PinGroup> by_stack;  ///< empty if no stacks were recorded
  std::vector<Gap> gaps;           ///< largest first
};

/// The event at which reserved memory first reached its peak.
[[nodiscard]] Result<std::uint32_t> peak_event(const Workload& workload, Bytes capacity);
/// The last event at or before `time_ns`.
[[nodiscard]] std::uint32_t event_at(const Workload& workload, std::uint64_t time_ns);

/// Analyses the state directly after `event`.
[[nodiscard]] Result<Blame> blame(const Workload& workload, std::uint32_t event, Bytes capacity,
                                  std::size_t most_gaps = 10);

}  // namespace neap::replay
