// Managed host memory for backups: large blocks in huge pages, first touched by many threads,
// pinned in chunks, handed out in contiguous buffers and kept for the next pause.
//
// Model     take() hands out addresses at once; their memory is taken and pinned by ready(), which
//           works in the background, in order, so that copies can start behind it. Every block
//           belongs to one owner (a tag), so that it can go back when the owner's buffers do.
//
// Threads   any; one lock, never held while memory is touched, pinned or given back.
//
// Failure   kOutOfHostMemory when the budget or the machine has no room even without free blocks. A
//           chunk that cannot be pinned is used unpinned, with a warning: slower, not wrong.
//
// Cost      take is logarithmic in the number of free pieces. A fresh GiB costs about 22 ms of 16
//           threads and 25 ms of the driver. A GiB that goes back costs 18 ms of the driver and 4 ms
//           of CPU time, divided among several threads.
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
  static constexpr Bytes kChunk = 128_MiB;  ///< pinned as one; no copy may cross its border
  static constexpr Bytes kUnit = 2_MiB;     ///< blocks are whole huge pages
  static constexpr Bytes kAlign = 4_KiB;    ///< buffers begin where direct input and output may

  HostPool(device::Device& device, Bytes budget, unsigned threads)
      : device_(device), budget_(budget), threads_(threads) {}
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  ~HostPool();

  /// What a buffer must fit in: backups in the budget, what only passes through in the machine.
  enum class Limit { kBudget, kMachine };
  using Owner = const void*;
  static constexpr Owner kStaging = nullptr;  ///< for memory that contents only pass through
  /// A contiguous buffer in a block of `owner`. `expect` is what the caller will ask for in all: a
  /// new block is made that large where the budget allows. Blocks that no buffer uses change their
  /// owner, or make room.
  [[nodiscard]] Result<HostBuffer> take(Bytes size, Bytes expect, Owner owner,
                                        Limit limit = Limit::kBudget);
  void give(const HostBuffer& buffer);
  /// A block for buffers of these sizes, which `owner` takes next. It has block_bytes() of them.
  [[nodiscard]] Status reserve(std::span<const Bytes> sizes, Owner owner);
  /// What one block takes of the budget that has buffers of these sizes.
  [[nodiscard]] static Bytes block_bytes(std::span<const Bytes> sizes);
  /// Unpins and unmaps blocks that no buffer uses; with `owner`, only blocks of that owner. The
  /// memory is the system's when this returns.
  void release_free(std::optional<Owner> owner = std::nullopt);
  /// The same when more is held than the budget allows.
  void trim();
  [[nodiscard]] Bytes held() const;
  /// For later blocks; what is held stays.
  void set_budget(Bytes budget);

  /// Threads that make buffers ready, in the order given. Joined when it dies.
  class Readying {
   public:
    Readying() = default;
    Readying(Readying&&) = default;
    Readying& operator=(Readying&&) = default;
    ~Readying();
    /// Blocks until the chunks under [at, at+size) can be copied to.
    Status wait(const std::byte* at, Bytes size);
    /// Until its threads are done.
    void finish();

   private:
    friend class HostPool;
    struct Work;
    std::shared_ptr<Work> work_;
    std::vector<std::thread> threads_;
  };
  [[nodiscard]] Readying ready(const std::vector<HostBuffer>& buffers);

  /// Unpins chunks while copies from other chunks still run, for a caller that gives the buffers
  /// back afterwards. Their contents stay.
  ///
  /// Threads   one user at a time.
  class Unpinning {
   public:
    /// Says that `copy` will read from a buffer. Without effect in blocks that hold other buffers.
    void expect(const device::Copy& copy);
    /// Says that it has: a chunk without further copies is unpinned.
    void done(const device::Copy& copy);
    /// Pins again what was unpinned, because the buffers stay in use.
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
  /// A free range of one of the owner's blocks, or of a block that no buffer uses.
  [[nodiscard]] std::optional<FreeRanges::Place> take_free(Bytes size, Owner owner);
  [[nodiscard]] Status add_block(Bytes size, Bytes expect, Owner owner, Limit limit);
  /// Unused blocks, each too small, may hold the memory: without them, if it has no room with them.
  template <class Make>
  [[nodiscard]] Status make_room(std::unique_lock<std::mutex>& lock, const Make& make);
  [[nodiscard]] Block& block_of(const std::byte* at) const;
  void add_free(std::byte* at, Bytes size);
  /// Unpins and unmaps; not under the lock.
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
