// Host memory in which parts of a model rest while they are not on the device: pinned, writable, at one
// address for life.
//
// Model     Belongs to a tag and counts against Options::host_budget, as backups do, but pause and resume
//           have no part in it: what is in it, and whether the device has a newer copy, is the owner's
//           business. A TransferLane copies between it and resident regions.
// Threads   one makes and destroys; the contents are the owner's.
// Failure   kOutOfHostMemory.
// Cost      of a fresh GiB as in host_pool.h: it is touched and pinned before make() returns.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "arena/arena.h"

namespace neap::arena {

class HostStorage {
 public:
  /// Contents are undefined. `arena` outlives the storage.
  [[nodiscard]] static Result<std::unique_ptr<HostStorage>> make(Arena& arena, std::string_view tag,
                                                                 Bytes size);
  /// The memory goes back once the copies from and to it that are under way were waited for.
  ~HostStorage() = default;
  HostStorage(const HostStorage&) = delete;
  HostStorage& operator=(const HostStorage&) = delete;

  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] Bytes size() const;

  /// The memory, which lives until its last holder lets go. Internal to arena/.
  class Memory;
  [[nodiscard]] const std::shared_ptr<Memory>& memory() const { return memory_; }

 private:
  explicit HostStorage(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<Memory> memory_;
};

}  // namespace neap::arena
