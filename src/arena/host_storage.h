// Pinned, writable host memory for offloaded parts of a model. Its address never changes.
//
// Model     Belongs to a tag and counts against Options::host_budget, as backups do. Pause and
//           resume do not touch it. The owner tracks its contents and whether the device has a
//           newer copy. A TransferLane copies between it and resident regions.
//
// Threads   one thread makes and destroys; the owner guards the contents.
//
// Failure   kOutOfHostMemory.
//
// Cost      whole huge pages. Storages whose memory was reserved together share them. make()
//           touches and pins before it returns; host_pool.h has the time per GiB.
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
  /// Reserves the memory of storages that are made for the tag next, one of each size. It takes one
  /// block of taken(sizes) bytes.
  [[nodiscard]] static Status reserve(Arena& arena, std::string_view tag,
                                      std::span<const Bytes> sizes);
  /// Bytes of the budget that such storages take.
  [[nodiscard]] static Bytes taken(std::span<const Bytes> sizes);
  /// The memory is released after the caller has waited for all copies from and to it.
  ~HostStorage() = default;
  HostStorage(const HostStorage&) = delete;
  HostStorage& operator=(const HostStorage&) = delete;

  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] Bytes size() const;

  /// The memory, which lives until its last holder is destroyed. Internal to arena/.
  class Memory;
  [[nodiscard]] const std::shared_ptr<Memory>& memory() const { return memory_; }

 private:
  explicit HostStorage(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<Memory> memory_;
};

}  // namespace neap::arena
