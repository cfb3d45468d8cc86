// Managed host memory for backups. Large blocks in huge pages are first touched by many threads and
// pinned in chunks. Buffers are contiguous and are kept for the next pause.
//
// Model     take() returns addresses at once. ready() allocates and pins their memory in the
//           background, in order, so that copies can start early. Every block belongs to one owner
//           (a tag), so that it can be released with the owner's buffers.
//
// Threads   any. One lock, never held while memory is touched, pinned or released.
//
// Failure   kOutOfHostMemory when the budget or the machine has no room even after free blocks are
//           released. A chunk that cannot be pinned is used unpinned, with a warning: slower, but
//           correct.
//
// Cost      take is logarithmic in the number of free pieces. A fresh GiB takes about 22 ms of 16
//           threads and 25 ms of the driver. Releasing a GiB takes 18 ms of the driver and 4 ms of
//           CPU time, divided among several threads.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "arena/free_ranges.h"
#include "device/device.h"

namespace neap::arena {

struct HostBuffer {
  std::byte* at = nullptr;
  Bytes size;
  [[nodiscard]] bool none() const { return at == nullptr; }
};

class HostPool {
  struct Chunk;
  struct Block;

 public:
  static constexpr Bytes kChunk = 128_MiB;  ///< pinned with one call; no copy may cross its border
  static constexpr Bytes kUnit = 2_MiB;     ///< blocks are whole huge pages
  static constexpr Bytes kAlign = 4_KiB;    ///< alignment of buffers, for direct I/O

  HostPool(device::Device& device, Bytes budget, unsigned threads)
      : device_(device), budget_(budget), threads_(threads) {}
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  ~HostPool();

  /// Limit for a buffer. Backups must fit in the budget; staging memory must fit in the machine.
  enum class Limit { kBudget, kMachine };
  using Owner = const void*;
  static constexpr Owner kStaging = nullptr;  ///< owner of staging memory
  /// Returns a contiguous buffer in a block of `owner`. `expect`: total bytes that the caller will
  /// ask for; a new block has that size if the budget allows. Unused blocks change their owner or
  /// are released to make room.
  [[nodiscard]] Result<HostBuffer> take(Bytes size, Bytes expect, Owner owner,
                                        Limit limit = Limit::kBudget);
  void give(const HostBuffer& buffer);
  /// Makes a block for buffers of these sizes, which `owner` takes next. It has block_bytes(sizes)
  /// bytes.
  [[nodiscard]] Status reserve(std::span<const Bytes> sizes, Owner owner);
  /// Bytes of the budget that one block with buffers of these sizes takes.
  [[nodiscard]] static Bytes block_bytes(std::span<const Bytes> sizes);
  /// Unpins and unmaps blocks that no buffer uses; with `owner`, only that owner's blocks. The
  /// system has the memory when this returns.
  void release_free(std::optional<Owner> owner = std::nullopt);
  /// As release_free(), if the held bytes exceed the budget.
  void trim();
  [[nodiscard]] Bytes held() const;
  /// Applies to later blocks; existing blocks stay.
  void set_budget(Bytes budget);

  /// Threads that prepare buffers in the given order. The destructor joins them.
  class Readying {
   public:
    Readying() = default;
    Readying(Readying&&) = default;
    Readying& operator=(Readying&&) = default;
    ~Readying();
    /// Blocks until the chunks under [at, at+size) can be copied to.
    Status wait(const std::byte* at, Bytes size);
    /// Waits until its threads are done.
    void finish();

   private:
    friend class HostPool;
    struct Work;
    std::shared_ptr<Work> work_;
    std::vector<std::thread> threads_;
  };
  [[nodiscard]] Readying ready(const std::vector<HostBuffer>& buffers);

  /// Unpins chunks while copies from other chunks still run, for a caller that releases the buffers
  /// afterwards. Contents stay.
  ///
  /// Threads   one user at a time.
  class Unpinning {
   public:
    /// Announces that `copy` will read from a buffer. No effect in blocks that hold other buffers.
    void expect(const device::Copy& copy);
    /// Reports that `copy` has ended. A chunk without further copies is unpinned.
    void done(const device::Copy& copy);
    /// Pins the unpinned chunks again, because the buffers stay in use.
    void undo();

   private:
    friend class HostPool;
    explicit Unpinning(HostPool& pool) : pool_(&pool) {}
    [[nodiscard]] Chunk* chunk_of(const device::Copy& copy) const;
    HostPool* pool_;
    std::map<const std::byte*, Block*> blocks_;
    std::map<Chunk*, Bytes> to_copy_;
    std::vector<Chunk*> unpinned_;
  };
  [[nodiscard]] Unpinning unpinning(const std::vector<HostBuffer>& buffers);

  /// Cuts a copy at the borders of chunks.
  void split(const device::Copy& copy, std::vector<device::Copy>& out) const;

 private:
  /// kUnpinned: memory with contents, to be pinned again before the next pause.
  enum class ChunkState : std::uint8_t { kEmpty, kBusy, kReady, kUnpinned };
  struct Chunk {
    std::byte* at = nullptr;
    Bytes size;
    ChunkState state = ChunkState::kEmpty;
    bool pinned = false;
    std::uint32_t slices_left = 0;
    Status failure;
  };
  struct Block {
    std::byte* at = nullptr;
    Bytes size;
    Bytes used;
    Owner owner = nullptr;
    std::vector<std::unique_ptr<Chunk>> chunks;
    [[nodiscard]] bool idle() const;
  };
  /// Takes a free range of the owner's blocks, or of a block that no buffer uses.
  [[nodiscard]] std::optional<FreeRanges::Place> take_free(Bytes size, Owner owner);
  [[nodiscard]] Status add_block(Bytes size, Bytes expect, Owner owner, Limit limit);
  /// Calls `make`. If it has no room, releases the unused blocks and calls it again: each may be
  /// too small, but together they may hold the memory.
  template <class Make>
  [[nodiscard]] Status make_room(std::unique_lock<std::mutex>& lock, const Make& make);
  [[nodiscard]] Block& block_of(const std::byte* at) const;
  void add_free(std::byte* at, Bytes size);
  /// Unpins and unmaps. Call it without the lock.
  void drop(Block& block);

  device::Device& device_;
  Bytes budget_;
  unsigned threads_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Bytes held_;
  std::map<const std::byte*, std::unique_ptr<Block>> blocks_;
  std::set<Block*> unused_;  ///< those without a buffer
  std::map<Owner, FreeRanges> free_;
};

}  // namespace neap::arena
