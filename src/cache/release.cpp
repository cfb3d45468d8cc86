// Releasing memory: empty_cache, retries after a miss, and garbage collection.
#include <algorithm>

#include "cache/core.h"

namespace neap::cache {

using Impl = CachingAllocator::Impl;

/// `block` is free and a whole ordinary segment.
Status Impl::release_segment(Block* block) {
  NEAP_TRY(source.free(block->address, Bytes(block->size)));
  Bin& bin = *block->bin;
  bin.free.erase(block->size, block->address);
  count_device_free(block->size);
  if (bin.pool->owner != nullptr) --bin.pool->owner->segments;
  emit(trace::EventKind::kSegmentFree, block->address, block->size, bin);
  slab.give(block);
  return ok_status();
}

Status Impl::release_pool_blocks(BlockPool& pool) {
  std::vector<Block*> whole;
  std::vector<Block*> expandable;
  for (const auto& bin : pool.bins) {
    for (auto at = bin->free.begin(); at != bin->free.end(); at = bin->free.next(at)) {
      Block* const block = bin->free[at].block;
      if (block->range != nullptr)
        expandable.push_back(block);
      else if (!block->is_split())
        whole.push_back(block);
    }
  }
  for (Block* block : whole) NEAP_TRY(release_segment(block));
  // Unmapping merges only unmapped neighbours, so the other blocks of the list stay valid.
  for (Block* block : expandable) NEAP_TRY(unmap_pages(block));
  return ok_status();
}

Status Impl::synchronize() {
  if (pending_head == nullptr) return ok_status();
  NEAP_TRY(source.synchronize());
  ++counts.synchronizations;
  while (pending_head != nullptr) complete(pending_head);
  return ok_status();
}

Status Impl::release_all() {
  NEAP_TRY(synchronize());
  NEAP_TRY(release_pool_blocks(large_pool));
  NEAP_TRY(release_pool_blocks(small_pool));
  for (auto at = private_pools.begin(); at != private_pools.end();) {
    PrivatePool& pool = *at->second;
    if (pool.released) {
      NEAP_TRY(release_pool_blocks(pool.small));
      NEAP_TRY(release_pool_blocks(pool.large));
    }
    at = pool.released && pool.segments == 0 ? private_pools.erase(at) : std::next(at);
  }
  return ok_status();
}

/// Releases blocks of at least max_split_size until the request fits. False if they are not enough;
/// released blocks stay released.
bool Impl::release_oversize(Request& request) {
  const Settings& settings = options.settings;
  if (settings.max_split_size == kUnlimited) return false;
  FreeIndex& free = request.bin->free;
  const std::uint64_t limit = settings.max_split_size.count();
  const std::uint64_t wanted = std::max(request.size, limit);
  const auto release = [this](Block* block) {
    failure = release_segment(block);
    return failure.ok();
  };
  auto at = free.lower_bound(wanted, 0);
  if (at != free.end() && free[at].block->range == nullptr) return release(free[at].block);
  std::vector<Block*> largest_first;
  std::uint64_t sum = 0;
  while (at != free.begin() && sum < wanted) {
    at = free.previous(at);
    Block* const block = free[at].block;
    if (block->size < limit) break;
    if (block->range != nullptr) continue;
    largest_first.push_back(block);
    sum += block->size;
  }
  for (Block* block : largest_first)
    if (!release(block)) return false;
  return sum >= wanted;
}

/// Releases the segments of the large pool that have been free longest, until reserved memory is
/// below the threshold.
void Impl::collect_garbage() {
  const auto threshold = static_cast<std::uint64_t>(options.settings.garbage_collection_threshold *
                                                    static_cast<double>(allowed_bytes));
  if (reserved <= threshold) return;
  const std::uint64_t target = reserved - threshold;
  std::vector<Block*> candidates;
  std::uint64_t total_age = 0;
  const auto age = [this](const Block* block) { return large_pool.search_count - block->born; };
  for (const auto& bin : large_pool.bins) {
    for (auto at = bin->free.begin(); at != bin->free.end(); at = bin->free.next(at)) {
      Block* const block = bin->free[at].block;
      if (block->is_split() || block->range != nullptr) continue;
      candidates.push_back(block);
      total_age += age(block);
    }
  }
  std::uint64_t reclaimed = 0;
  bool freed = true;
  while (reclaimed < target && freed && !candidates.empty()) {
    freed = false;
    const double least = static_cast<double>(total_age) / static_cast<double>(candidates.size());
    std::vector<Block*> rest;
    for (Block* block : candidates) {
      if (static_cast<double>(age(block)) < least) {
        rest.push_back(block);
        continue;
      }
      const std::uint64_t size = block->size;
      total_age -= age(block);
      failure = release_segment(block);
      if (!failure.ok()) return;
      reclaimed += size;
      freed = true;
    }
    candidates.swap(rest);
  }
}

}  // namespace neap::cache
