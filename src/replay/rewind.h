// From the final segments back to the state before the first event. Private to replay/.
#pragma once

#include <map>
#include <vector>

#include "replay/workload.h"

namespace neap::replay {

/// A mapped range while time runs backwards.
struct Range {
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::uint8_t pool = 0;
  bool small_pool = false;
  bool expandable = false;
};

struct RewoundBlock {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< as rounded; 0 = not known
  std::uint64_t requested = 0;
  std::uint64_t stream = 0;
  bool pending = false;
};

struct Rewound {
  std::map<std::uint64_t, Range> ranges;
  std::vector<RewoundBlock> blocks;  ///< by address
  /// Pool of each alloc event by event index; empty when there is no private pool.
  std::vector<std::uint8_t> alloc_pools;
};

[[nodiscard]] Rewound rewind(const trace::DeviceRecording& device, const cache::Settings& settings,
                             Anomalies& anomalies);

/// Lays the blocks out in their segments: unknown sizes are derived, gaps become free
/// blocks.
void lay_out(const Rewound& state, Workload& workload);

}  // namespace neap::replay
