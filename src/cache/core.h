// State of CachingAllocator and the steps of its policy. Private to cache/.
//
// Functions that may lack memory return null or false. Any other failure of the source is stored in
// `failure` and ends the request.
#pragma once

#include <map>
#include <mutex>

#include "cache/address_map.h"
#include "cache/block.h"

namespace neap::cache {

struct CachingAllocator::Impl {
  Impl(SegmentSource& segment_source, CacheOptions cache_options);

  struct Request {
    std::uint64_t requested;
    std::uint64_t size;          ///< rounded
    std::uint64_t segment_size;  ///< requested from the source on a miss
    Bin* bin;
    Block* block = nullptr;
  };

  // request.cpp: malloc and free.
  Result<Address> malloc(Bytes size, Stream stream, std::uint32_t pool_id);
  Bin& bin_of(BlockPool& pool, Stream stream);
  BlockPool& pool_for(std::uint32_t id, bool small);
  PrivatePool& private_pool(std::uint32_t id);
  bool take_free_block(Request& request, Bin& bin);
  /// Best fit for `wanted` rounded bytes; end() if no block fits.
  [[nodiscard]] FreeIndex::Cursor find_free_block(std::uint64_t wanted, const Bin& bin) const;
  [[nodiscard]] bool would_fit(Bytes size, Stream stream, std::uint32_t pool_id);
  bool take_from_fallback_pools(Request& request);
  bool make_block(Request& request, bool is_retry);
  bool miss(Request& request);
  Address finish(Request& request);
  [[nodiscard]] bool should_split(const Block& block, std::uint64_t size) const;
  Status free(Address at, bool defer);
  void complete(Block* block);
  std::uint64_t merge(Block* into, Block* neighbour);
  Status shortage(const Request& request);

  // expandable.cpp:
  [[nodiscard]] bool expandable_for(const BlockPool& pool) const;
  Block* take_expandable(Bin& bin, std::uint64_t size);
  Block* find_expandable(Bin& bin, std::uint64_t size);
  bool map_block(Block* block, std::uint64_t size);
  Status unmap_block(Block* block, std::uint64_t begin, std::uint64_t end);
  /// Unmaps the whole pages inside a free block. A reservation without mapped pages is returned to
  /// the source.
  Status unmap_pages(Block* block);
  Status drop_range_if_empty(Block* block);

  // release.cpp:
  Status release_segment(Block* block);
  Status release_pool_blocks(BlockPool& pool);
  Status release_all();
  bool release_oversize(Request& request);
  void collect_garbage();
  Status synchronize();

  // inspect.cpp:
  std::vector<SegmentView> snapshot() const;
  Status adopt(const std::vector<SegmentView>& segments,
               const std::vector<Reservation>& reservations);
  Status release_range(Address at, Bytes size);
  Status map_range(Address at, Bytes size);
  template <class Find>
  Block* find_in_pools(Find find);
  Status check_invariants() const;
  void give_everything_back();

  void insert_free(Block* block) {
    block->state = BlockState::kFree;
    block->born = block->bin->pool->search_count;
    block->bin->free.insert({block->size, block->address, block});
  }
  void emit(trace::EventKind kind, Address at, std::uint64_t size, const Bin& bin) {
    if (options.events == nullptr) return;
    trace::Event event;
    event.address = at;
    event.size = size;
    event.stream = bin.stream;
    event.device = options.device;
    event.kind = kind;
    event.pool = static_cast<std::uint8_t>(bin.pool->owner == nullptr ? 0 : bin.pool->owner->id);
    options.events->record(event);
  }
  /// Call before the driver allocates `size` more bytes.
  void count_device_alloc(std::uint64_t size);
  void count_device_free(std::uint64_t size);

  SegmentSource& source;
  CacheOptions options;
  bool limited = false;                 ///< a memory fraction is set
  std::uint64_t allowed_bytes = ~0ull;  ///< bytes that the memory fraction allows
  mutable std::mutex mutex;

  BlockSlab slab;
  AddressMap<Block*> live;
  BlockPool small_pool;
  BlockPool large_pool;
  std::map<std::uint32_t, std::unique_ptr<PrivatePool>> private_pools;
  std::vector<std::unique_ptr<ExpandableRange>> ranges;
  Block* pending_head = nullptr;
  Block* pending_tail = nullptr;
  Status failure;  ///< failure that ends the current request

  std::uint64_t allocated = 0, reserved = 0, requested = 0, active = 0;
  std::uint64_t peak_allocated = 0, peak_reserved = 0, peak_requested = 0, peak_active = 0;
  std::uint64_t peak_without_fragmentation = 0, fragmentation_at_peak = 0, fragmentation_max = 0;
  CacheStats counts;  ///< only its counters are kept current
};

}  // namespace neap::cache
