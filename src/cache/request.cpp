// malloc and free: best fit, split, merge, and the steps after a miss.
#include <algorithm>

#include "base/format.h"
#include "cache/core.h"

namespace neap::cache {

using Impl = CachingAllocator::Impl;

Impl::Impl(SegmentSource& segment_source, CacheOptions cache_options)
    : source(segment_source), options(cache_options) {
  small_pool.small = true;
  limited = options.settings.memory_fraction > 0;
  if (limited)
    allowed_bytes = static_cast<std::uint64_t>(options.settings.memory_fraction *
                                               static_cast<double>(source.capacity().count()));
}

Bin& Impl::bin_of(BlockPool& pool, Stream stream) {
  if (!pool.bins.empty() && pool.bins.front()->stream == stream) return *pool.bins.front();
  const auto at = std::lower_bound(
      pool.bins.begin(), pool.bins.end(), stream,
      [](const std::unique_ptr<Bin>& bin, Stream wanted) { return bin->stream < wanted; });
  if (at != pool.bins.end() && (*at)->stream == stream) return **at;
  auto bin = std::make_unique<Bin>();
  bin->stream = stream;
  bin->pool = &pool;
  return **pool.bins.insert(at, std::move(bin));
}

PrivatePool& Impl::private_pool(std::uint32_t id) {
  auto& slot = private_pools[id];
  if (slot == nullptr) {
    slot = std::make_unique<PrivatePool>();
    slot->id = id;
    slot->small.small = true;
    slot->small.owner = slot.get();
    slot->large.owner = slot.get();
  }
  return *slot;
}

BlockPool& Impl::pool_for(std::uint32_t id, bool small) {
  if (id == 0) return small ? small_pool : large_pool;
  PrivatePool& own = private_pool(id);
  own.released = false;
  return small ? own.small : own.large;
}

bool Impl::would_fit(Bytes size, Stream stream, std::uint32_t pool_id) {
  const Bytes rounded = options.settings.round(size + options.version.padding);
  const Bin& bin = bin_of(pool_for(pool_id, rounded <= kSmallSize), stream);
  return find_free_block(rounded.count(), bin) != bin.free.end();
}

Result<Address> Impl::malloc(Bytes size, Stream stream, std::uint32_t pool_id) {
  if (size.is_zero()) return Address{0};
  const Bytes padded = size > kMaxRequest ? size : size + options.version.padding;
  Request request{};
  request.requested = size.count();
  if (size > kMaxRequest) {
    request.size = size.count();
    return shortage(request);
  }
  const Bytes rounded = options.settings.round(padded);
  request.size = rounded.count();
  request.segment_size = options.settings.segment_size_for(rounded).count();
  request.bin = &bin_of(pool_for(pool_id, rounded <= kSmallSize), stream);
  if (!take_free_block(request, *request.bin) && !miss(request)) {
    if (!failure.ok()) return std::exchange(failure, ok_status());
    return shortage(request);
  }
  return finish(request);
}

bool Impl::take_free_block(Request& request, Bin& bin) {
  if (limited && options.settings.garbage_collection_threshold > 0) ++bin.pool->search_count;
  const auto at = find_free_block(request.size, bin);
  if (at == bin.free.end()) return false;
  request.block = bin.free[at].block;
  bin.free.erase(at);
  return true;
}

FreeIndex::Cursor Impl::find_free_block(std::uint64_t wanted, const Bin& bin) const {
  const Settings& settings = options.settings;
  const FreeIndex& free = bin.free;
  auto at = free.lower_bound(wanted, 0);
  const auto end = free.end();
  if (at == end) return end;
  if (free[at].block->range != nullptr) {
    if (settings.expandable_segments) {
      // For a block at the end of the mapped range, also count the unmapped bytes after it. The
      // block with the smallest sum is chosen.
      const auto reach = [](const Block* block) {
        return block->size +
               (block->next != nullptr && !block->next->mapped ? block->next->size : 0);
      };
      for (auto next = free.next(at); free[at].block->range != nullptr && next != end &&
                                      reach(free[next].block) < reach(free[at].block);
           next = free.next(at))
        at = next;
    } else {
      while (at != end && free[at].block->range != nullptr) at = free.next(at);
      if (at == end) return end;
    }
  }
  const std::uint64_t limit = settings.max_split_size.count();
  const std::uint64_t size = free[at].size;
  if (wanted < limit && size >= limit) return end;
  if (wanted >= limit && size >= wanted + settings.max_non_split_rounding.count()) return end;
  return at;
}

bool Impl::take_from_fallback_pools(Request& request) {
  if (request.bin->pool->owner != nullptr) return false;
  for (auto& [id, pool] : private_pools) {
    if (!pool->options.use_on_oom) continue;
    BlockPool& blocks = request.bin->pool->small ? pool->small : pool->large;
    if (take_free_block(request, bin_of(blocks, request.bin->stream))) return true;
  }
  return false;
}

bool Impl::miss(Request& request) {
  const bool in_private_pool = request.bin->pool->owner != nullptr;
  if (limited && options.settings.garbage_collection_threshold > 0) collect_garbage();
  if (make_block(request, false)) return true;
  const bool fallback_first = options.version.use_on_oom_first;
  if (failure.ok() && fallback_first && take_from_fallback_pools(request)) return true;
  if (failure.ok() && release_oversize(request) && make_block(request, false)) return true;
  if (!in_private_pool || options.version.private_pool_reclaims) {
    if (!failure.ok()) return false;
    failure = release_all();
    if (failure.ok() && make_block(request, true)) return true;
    if (failure.ok() && options.version.search_after_release &&
        take_free_block(request, *request.bin))
      return true;
  }
  return failure.ok() && !fallback_first && take_from_fallback_pools(request);
}

bool Impl::make_block(Request& request, bool is_retry) {
  if (is_retry) ++counts.retries;
  if (limited && reserved + request.segment_size > allowed_bytes) return false;
  Bin& bin = *request.bin;
  if (expandable_for(*bin.pool)) {
    request.block = take_expandable(bin, request.size);
    return request.block != nullptr;
  }
  auto address = source.allocate(Bytes(request.segment_size), bin.stream, bin.pool->small);
  if (!address.ok()) {
    if (address.status().code() != ErrorCode::kOutOfDeviceMemory) failure = address.status();
    return false;
  }
  count_device_alloc(request.segment_size);
  if (bin.pool->owner != nullptr) ++bin.pool->owner->segments;
  Block* const block = slab.take();
  block->address = *address;
  block->size = request.segment_size;
  block->bin = &bin;
  emit(trace::EventKind::kSegmentAlloc, block->address, block->size, bin);
  request.block = block;
  return true;
}

bool Impl::should_split(const Block& block, std::uint64_t size) const {
  const BlockPool& pool = *block.bin->pool;
  if (pool.owner != nullptr && pool.owner->options.no_split) return false;
  const std::uint64_t rest = block.size - size;
  if (pool.small || expandable_for(pool)) return rest >= kMinBlockSize.count();
  return size < options.settings.max_split_size.count() && rest > kSmallSize.count();
}

Address Impl::finish(Request& request) {
  Block* block = request.block;
  if (should_split(*block, request.size)) {
    Block* const rest = slab.take();
    rest->bin = block->bin;
    rest->range = block->range;
    rest->address = block->address + request.size;
    rest->size = block->size - request.size;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->previous = rest;
    block->next = rest;
    block->size = request.size;
    insert_free(rest);
  }
  block->state = BlockState::kAllocated;
  block->requested = request.requested;
  live.insert(block->address, block);
  ++counts.allocs;
  allocated += block->size;
  active += block->size;
  requested += block->requested;
  peak_allocated = std::max(peak_allocated, allocated);
  peak_active = std::max(peak_active, active);
  peak_requested = std::max(peak_requested, requested);
  emit(trace::EventKind::kAlloc, block->address, block->requested, *block->bin);
  return block->address;
}

Status Impl::free(Address at, bool defer) {
  if (at == 0) return ok_status();
  Block* const block = live.find(at);
  if (block == nullptr || block->state != BlockState::kAllocated)
    return {ErrorCode::kInvalidArgument,
            format("Address {:#x} is not a live block{}", at,
                   block == nullptr ? "" : ": its free is pending already")};
  ++counts.frees;
  allocated -= block->size;
  requested -= block->requested;
  emit(trace::EventKind::kFreeRequested, at, block->requested, *block->bin);
  if (!defer) {
    complete(block);
    return ok_status();
  }
  block->state = BlockState::kPending;
  block->pending_previous = pending_tail;
  block->pending_next = nullptr;
  (pending_tail != nullptr ? pending_tail->pending_next : pending_head) = block;
  pending_tail = block;
  return ok_status();
}

void Impl::complete(Block* block) {
  if (block->state == BlockState::kPending) {
    (block->pending_previous != nullptr ? block->pending_previous->pending_next : pending_head) =
        block->pending_next;
    (block->pending_next != nullptr ? block->pending_next->pending_previous : pending_tail) =
        block->pending_previous;
  }
  emit(trace::EventKind::kFreeCompleted, block->address, block->requested, *block->bin);
  live.take(block->address);
  active -= block->size;
  block->state = BlockState::kFree;
  merge(block, block->previous);
  merge(block, block->next);
  insert_free(block);
}

/// `into` is in no index. `neighbour` is removed from its index and merged into `into`.
std::uint64_t Impl::merge(Block* into, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->is_free() || neighbour->mapped != into->mapped) return 0;
  Bin& bin = *neighbour->bin;
  if (neighbour->mapped)
    bin.free.erase(neighbour->size, neighbour->address);
  else
    bin.unmapped.erase(0, neighbour->address);
  const std::uint64_t size = neighbour->size;
  if (into->previous == neighbour) {
    into->address = neighbour->address;
    into->previous = neighbour->previous;
    if (into->previous != nullptr) into->previous->next = into;
  } else {
    into->next = neighbour->next;
    if (into->next != nullptr) into->next->previous = into;
  }
  into->size += size;
  slab.give(neighbour);
  return size;
}

void Impl::count_device_alloc(std::uint64_t size) {
  const std::uint64_t fragmentation = reserved - requested;
  reserved += size;
  ++counts.device_allocs;
  fragmentation_max = std::max(fragmentation_max, fragmentation);
  peak_without_fragmentation = std::max(peak_without_fragmentation, reserved - fragmentation);
  if (reserved > peak_reserved) {
    peak_reserved = reserved;
    fragmentation_at_peak = fragmentation;
  }
}

void Impl::count_device_free(std::uint64_t size) {
  reserved -= size;
  ++counts.device_frees;
}

Status Impl::shortage(const Request& request) {
  ++counts.ooms;
  const std::uint64_t capacity = std::min(source.capacity().count(), allowed_bytes);
  const std::uint64_t left = capacity > reserved ? capacity - reserved : 0;
  if (options.events != nullptr) {
    trace::Event event;
    event.kind = trace::EventKind::kOom;
    event.address = left;
    event.size = request.size;
    event.stream = request.bin != nullptr ? request.bin->stream : 0;
    event.device = options.device;
    options.events->record(event);
  }
  MemoryShortage details{Bytes(request.size), Bytes(left), Bytes(capacity), {}};
  details.holders = {{"live blocks", Bytes(allocated)},
                     {"frees that wait for other streams", Bytes(active - allocated)},
                     {"free blocks in split segments", Bytes(reserved - active)}};
  std::erase_if(details.holders, [](const MemoryHolder& h) { return h.bytes.is_zero(); });
  std::stable_sort(details.holders.begin(), details.holders.end(),
                   [](const MemoryHolder& a, const MemoryHolder& b) { return a.bytes > b.bytes; });
  return Status::out_of_memory("The caching allocator found no block", std::move(details));
}

}  // namespace neap::cache
