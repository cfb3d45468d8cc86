// Managed host memory for backups: large blocks in huge pages, first touched by many threads,
// pinned in chunks, handed out in contiguous buffers and kept for the next pause.
//
// Model     take() hands out addresses at once; their memory is taken and pinned by ready(), which
//           works in the background, in order, so that copies can start behind it.
// Threads   any; one lock, never held while memory is touched or pinned.
// Failure   kOutOfHostMemory when the budget or the machine has no room even without free blocks. A chunk that cannot be
//           pinned is used unpinned, with a warning: slower, not wrong.
// Cost      take is logarithmic in the number of free pieces; a fresh GiB costs about 22 ms of 16
//           threads and 25 ms of the driver.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "arena/beside.h"
#include "arena/free_ranges.h"
#include "device/device.h"

namespace neap::arena {

struct HostBuffer {
  std::byte* at = nullptr;
  Bytes size;
  [[nodiscard]] bool none() const { return at == nullptr; }
};

class HostPool {
 public:
  static constexpr Bytes kChunk = 128_MiB;  ///< pinned as one; no copy may cross its border

  HostPool(device::Device& device, Bytes budget, unsigned threads)
      : device_(device), budget_(budget), threads_(threads) {}
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  ~HostPool();

  /// What a buffer must fit in: backups in the budget, what only passes through in the machine.
  enum class Limit { kBudget, kMachine };
  /// A contiguous buffer. `expect` is what the caller will ask for in all: a new block is made that
  /// large where the budget allows. Blocks that nobody uses make room.
  [[nodiscard]] Result<HostBuffer> take(Bytes size, Bytes expect, Limit limit = Limit::kBudget);
  void give(const HostBuffer& buffer);
  /// Unpins and unmaps blocks that no buffer uses: 20 ms a GiB. Beside the caller they count as gone
  /// at once; the next block waits for them.
  enum class Drop { kHere, kBeside };
  void release_free(Drop where = Drop::kHere);
  /// Releases them here when more is held than the budget allows.
  void trim();
  /// Until blocks that were released beside their caller are the system's again.
  void wait_for_drops() { dropping_.wait(); }
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

  /// Cuts a copy at the borders of chunks.
  void split(const device::Copy& copy, std::vector<device::Copy>& out) const;

 private:
  enum class ChunkState : std::uint8_t { kEmpty, kBusy, kReady };
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
    std::vector<std::unique_ptr<Chunk>> chunks;
  };
  [[nodiscard]] Status add_block(Bytes size, Bytes expect, Limit limit);
  [[nodiscard]] const Block& block_of(const std::byte* at) const;
  void add_free(std::byte* at, Bytes size);
  void drop(Block& block);

  device::Device& device_;
  Bytes budget_;
  unsigned threads_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Bytes held_;
  std::map<const std::byte*, std::unique_ptr<Block>> blocks_;
  FreeRanges free_;
  Beside dropping_;
};

}  // namespace neap::arena
