// Counts the calls that the hooks forwarded to the CUDA runtime, their bytes, and live blocks.
//
// Threads   any; sixteen locks, selected by address.
//
// Cost      about 100 ns per allocation.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/bytes.h"

namespace neap::hook {

struct OutsideStats {
  std::uint64_t calls = 0, failures = 0, blocks = 0;
  Bytes bytes, peak;
};

class Outside {
 public:
  static Outside& get();
  void allocated(const void* at, Bytes size, int device);
  void failed();
  /// Removes the block and returns its size; zero if its allocation was not seen.
  Bytes freed(const void* at);
  [[nodiscard]] OutsideStats stats() const;
  void lock_all();
  void unlock_all();

 private:
  struct Block {
    Bytes size;
    int device;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<const void*, Block> blocks;
  };
  static std::size_t shard_of(const void* at) {
    return (reinterpret_cast<std::uintptr_t>(at) >> 9) % 16;
  }
  std::array<Shard, 16> shards_;
  std::atomic<std::uint64_t> calls_{0}, failures_{0}, blocks_{0}, bytes_{0}, peak_{0};
};

}  // namespace neap::hook
