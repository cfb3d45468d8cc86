// What keeps memory from being released: at one moment of the recorded run, which live blocks pin
// how much free memory in their segments.
//
// Model     Memory is released in units: an ordinary segment as a whole, an expandable one page by
//           page. A unit with a live block in it is pinned: its free bytes are charged to the live
//           blocks, in equal parts (share), and once more to a group that holds the unit alone
//           (alone): what would be released without that group.
// Cost      one replay up to the moment, then one walk over the blocks.
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
  std::string before, after;  ///< the live blocks next to it
};

struct Blame {
  std::uint32_t event = 0;
  std::uint64_t time_ns = 0;
  std::string phase;
  Bytes reserved, allocated, active;
  Bytes releasable;                ///< free units: empty_cache would release them
  Bytes pinned;                    ///< free bytes in units that a live block holds
  std::vector<PinGroup> by_phase;  ///< phase in which the block was born; most pinned first
  std::vector<PinGroup> by_size;
  std::vector<PinGroup> by_stack;  ///< empty when no stacks were recorded
  std::vector<Gap> gaps;           ///< largest first
};

/// The event at which reserved memory first reached its peak.
[[nodiscard]] Result<std::uint32_t> peak_event(const Workload& workload, Bytes capacity);
/// The last event not after `time_ns`.
[[nodiscard]] std::uint32_t event_at(const Workload& workload, std::uint64_t time_ns);

/// The state right after `event`.
[[nodiscard]] Result<Blame> blame(const Workload& workload, std::uint32_t event, Bytes capacity,
                                  std::size_t most_gaps = 10);

}  // namespace neap::replay
