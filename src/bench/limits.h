// Fresh host memory, allocated as backups do. Internal to bench/.
#pragma once

#include <memory>

#include "bench/bench.h"

namespace neap::bench {

struct HostRoom {
  HostRoom() = default;
  HostRoom(const HostRoom&) = delete;
  HostRoom& operator=(const HostRoom&) = delete;
  ~HostRoom();
  /// Reserves addresses only.
  [[nodiscard]] static Result<std::unique_ptr<HostRoom>> make(Bytes size);
  Status touch(unsigned threads);

  std::byte* at = nullptr;
  Bytes size;
};

/// As many threads as the arena uses.
[[nodiscard]] unsigned touching_threads();

}  // namespace neap::bench
