// The policy of docs/caching-allocator.md a second time, slow and obvious: every block in one list
// ordered by address, every search a walk over all of it. Shares nothing with src/cache/ but the
// parsed settings' fields.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cache/caching_allocator.h"
#include "cache/sim_source.h"

namespace neap::cache {

class SlowModel {
 public:
  SlowModel(SegmentSource& source, Settings settings, PolicyVersion version)
      : source_(source), s_(std::move(settings)), version_(version) {}

  /// Nothing: out of memory.
  std::optional<Address> malloc(std::uint64_t size, Stream stream, std::uint32_t pool);
  void free(Address at, bool defer);
  void complete(Address at);
  void empty_cache();
  void release_pool(std::uint32_t pool) { released_.insert(pool); }

  std::uint64_t reserved = 0, allocated = 0;
  std::uint64_t device_allocs = 0, device_frees = 0, retries = 0;

 private:
  struct Block {
    Address address;
    std::uint64_t size;
    std::uint64_t requested;
    int segment;  ///< blocks of one segment or reservation share it
    Stream stream;
    std::uint32_t pool;
    bool small;
    bool expandable;
    bool mapped;
    enum { kFree, kUsed, kPending } state;
    std::uint64_t born;
  };
  using Blocks = std::list<Block>;
  using It = Blocks::iterator;
  struct Want {
    std::uint64_t size, segment_size;
    Stream stream;
    std::uint32_t pool;
    bool small;
  };

  [[nodiscard]] std::uint64_t round(std::uint64_t size) const;
  std::vector<It> free_blocks(const Want& want);  ///< by size, then address
  std::optional<It> search(const Want& want);
  std::optional<It> make(const Want& want, bool retry);
  std::optional<It> grow(const Want& want);
  bool map(It block, std::uint64_t size);
  It merge_around(It block);
  [[nodiscard]] bool whole(It block);
  void drop_segment(It block);
  void release_all();
  void release(bool small, std::uint32_t pool);
  void unmap_pages(It block);
  bool release_oversize(const Want& want);
  void collect_garbage();
  It insert(Block block);
  std::uint64_t& clock(const Want& want) { return clocks_[{want.pool, want.small}]; }
  [[nodiscard]] std::uint64_t page(bool small) const {
    return small ? (2ull << 20) : s_.large_segment_size.count();
  }
  It find(Address at);
  [[nodiscard]] std::uint64_t allowed() const;

  SegmentSource& source_;
  Settings s_;
  PolicyVersion version_;
  Blocks blocks_;  ///< by address
  int next_segment_ = 0;
  std::map<std::pair<std::uint32_t, bool>, std::uint64_t> clocks_;
  std::map<int, std::pair<Address, std::uint64_t>> reservations_;
  std::set<std::uint32_t> released_;
};

}  // namespace neap::cache
