// Rewinds from the final segments to the state before the first event. Private to replay/.
#pragma once

#include <map>
#include <vector>

#include "replay/workload.h"

namespace neap::replay {

/// A mapped range during the rewind.
struct Range {
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::uint8_t pool = 0;
  bool small_pool = false;
  bool expandable = false;
};

struct RewoundBlock {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< rounded; 0 = unknown
  std::uint64_t requested = 0;
  std::uint64_t stream = 0;
  bool pending = false;
};

struct Rewound {
  std::map<std::uint64_t, Range> ranges;
  std::vector<RewoundBlock> blocks;  ///< by address
  /// Pool of each alloc event, by event index. Empty without private pools.
  std::vector<std::uint8_t> alloc_pools;
};

[[nodiscard]] Rewound rewind(const trace::DeviceRecording& device, const cache::Settings& settings,
                             Anomalies& anomalies);

/// Learns sizes of blocks that were freed later. The allocator allocates at the start of a free
/// block, so an allocation after a live block begins where that block ends.
void learn_sizes(Rewound& state, const Workload& workload);

/// Places the blocks in their segments: derives unknown sizes and turns gaps into free blocks.
void lay_out(const Rewound& state, Workload& workload);

}  // namespace neap::replay
