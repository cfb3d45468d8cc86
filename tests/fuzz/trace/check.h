// What must hold for every Recording, whatever file it came from.
#pragma once

#include <cstdlib>

#include "trace/recording.h"

namespace neap::trace {

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline void check(const Recording& r) {
  require(!r.pools.empty() && r.pools.size() <= 256);
  for (const Frame& f : r.stacks.frames())
    require(f.function < r.names.size() && f.file < r.names.size());
  for (std::uint32_t id = 0; id < r.stacks.size(); ++id)
    for (const std::uint32_t f : r.stacks.stack(id)) require(f < r.stacks.frames().size());
  int last = -1;
  for (const DeviceRecording& d : r.devices) {
    require(d.ordinal > last);
    last = d.ordinal;
    for (const Segment& s : d.segments) {
      require(s.pool < r.pools.size() && s.stack < r.stacks.size());
      for (const Block& b : d.blocks_of(s)) require(b.stack < r.stacks.size());
    }
    for (const Event& e : d.events) {
      require(e.device == d.ordinal && e.pool < r.pools.size());
      require(e.name < (names_a_stack(e.kind) ? r.stacks.size() : r.names.size()));
    }
  }
}

}  // namespace neap::trace
