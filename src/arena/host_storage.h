// Host memory in which parts of a model rest while they are not on the device: pinned, writable, at one
// address for life.
//
// Model     Belongs to a tag and counts against Options::host_budget, as backups do, but pause and resume
//           have no part in it: what is in it, and whether the device has a newer copy, is the owner's
//           business. A TransferLane copies between it and resident regions.
// Threads   one makes and destroys; the contents are the owner's.
// Failure   kOutOfHostMemory.
// Cost      whole huge pages, which storages share whose memory was reserved together. Of a fresh GiB as in
//           host_pool.h: it is touched and pinned before make() returns.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "arena/arena.h"

namespace neap::arena {

class HostStorage {
 public:
  /// Contents are undefined. `arena` outlives the storage.
  [[nodiscard]] static Result<std::unique_ptr<HostStorage>> make(Arena& arena, std::string_view tag,
                                                                 Bytes size);
  /// Takes the memory of storages that are made for the tag next, one of each size, in one piece of taken(sizes).
  [[nodiscard]] static Status reserve(Arena& arena, std::string_view tag,
                                      std::span<const Bytes> sizes);
  /// What such storages take of the budget.
  [[nodiscard]] static Bytes taken(std::span<const Bytes> sizes);
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
