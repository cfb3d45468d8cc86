// Expandable segments: one address range per stream and pool, mapped page by page.
#include <algorithm>

#include "cache/core.h"

namespace neap::cache {

using Impl = CachingAllocator::Impl;

bool Impl::expandable_for(const BlockPool& pool) const {
  return options.settings.expandable_segments &&
         (pool.owner == nullptr || !pool.owner->options.own_allocator);
}

namespace {

bool allocatable(const Block* block) {
  return block != nullptr && block->is_free();
}

}  // namespace

Block* Impl::find_expandable(Bin& bin, std::uint64_t size) {
  const auto has_room = [size](const Block* block) {
    std::uint64_t room = 0;
    for (; room < size && allocatable(block); block = block->next) room += block->size;
    return room >= size;
  };
  for (auto at = bin.unmapped.begin(); at != bin.unmapped.end(); at = bin.unmapped.next(at)) {
    Block* candidate = bin.unmapped[at].block;
    if (allocatable(candidate->previous)) candidate = candidate->previous;
    if (has_room(candidate)) return candidate;
  }
  const Bytes page = bin.pool->small ? options.page_small : options.settings.large_segment_size;
  const Bytes total = source.capacity();
  const Bytes length = round_up(std::max(total + total / 8, Bytes(size)), page);
  auto address = source.reserve(length, bin.stream, bin.pool->small);
  if (!address.ok()) {
    if (address.status().code() != ErrorCode::kOutOfDeviceMemory) failure = address.status();
    return nullptr;
  }
  ranges.push_back(
      std::make_unique<ExpandableRange>(ExpandableRange{*address, length, page.count()}));
  if (bin.pool->owner != nullptr) ++bin.pool->owner->segments;
  Block* const block = slab.take();
  block->address = *address;
  block->size = length.count();
  block->bin = &bin;
  block->range = ranges.back().get();
  block->mapped = false;
  bin.unmapped.insert({0, block->address, block});
  return block;
}

Block* Impl::take_expandable(Bin& bin, std::uint64_t size) {
  Block* block = find_expandable(bin, size);
  if (block == nullptr) return nullptr;
  if (!block->mapped && !map_block(block, std::min(block->size, size))) return nullptr;
  while (block->size < size) {
    Block* const next = block->next;
    if (!map_block(next, std::min(size - block->size, next->size))) return nullptr;
    block = next;  // it was merged with the block before it
  }
  bin.free.erase(block->size, block->address);
  return block;
}

bool Impl::map_block(Block* block, std::uint64_t size) {
  const std::uint64_t page = block->range->page;
  const std::uint64_t length = (size + page - 1) / page * page;
  const Status mapped = source.map(block->address, Bytes(length));
  if (!mapped.ok()) {
    if (mapped.code() != ErrorCode::kOutOfDeviceMemory) failure = mapped;
    return false;
  }
  Bin& bin = *block->bin;
  bin.unmapped.erase(0, block->address);
  block->mapped = true;
  if (length < block->size) {
    Block* const rest = slab.take();
    rest->bin = &bin;
    rest->range = block->range;
    rest->mapped = false;
    rest->address = block->address + length;
    rest->size = block->size - length;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->previous = rest;
    block->next = rest;
    block->size = length;
    bin.unmapped.insert({0, rest->address, rest});
  }
  const Address at = block->address;
  merge(block, block->previous);
  merge(block, block->next);
  insert_free(block);
  count_device_alloc(length);
  emit(trace::EventKind::kSegmentMap, at, length, bin);
  return true;
}

/// [begin, end) are whole pages inside the free block. The remaining bytes of the block stay
/// mapped.
Status Impl::unmap_block(Block* block, std::uint64_t begin, std::uint64_t end) {
  NEAP_TRY(source.unmap(begin, Bytes(end - begin)));
  Bin& bin = *block->bin;
  bin.free.erase(block->size, block->address);
  const auto keep = [&](Address at, std::uint64_t size, Block* before, Block* after) {
    Block* const part = slab.take();
    part->bin = &bin;
    part->range = block->range;
    part->address = at;
    part->size = size;
    part->previous = before;
    part->next = after;
    if (before != nullptr) before->next = part;
    if (after != nullptr) after->previous = part;
    insert_free(part);
  };
  const Address block_end = block->address + block->size;
  if (block->address < begin) keep(block->address, begin - block->address, block->previous, block);
  if (end < block_end) keep(end, block_end - end, block, block->next);
  block->address = begin;
  block->size = end - begin;
  block->mapped = false;
  merge(block, block->previous);
  merge(block, block->next);
  bin.unmapped.insert({0, block->address, block});
  count_device_free(end - begin);
  emit(trace::EventKind::kSegmentUnmap, begin, end - begin, bin);
  return ok_status();
}

Status Impl::unmap_pages(Block* block) {
  const ExpandableRange& range = *block->range;
  const auto page = range.page;
  const Address begin = range.address + (block->address - range.address + page - 1) / page * page;
  const Address end = range.address + (block->address + block->size - range.address) / page * page;
  if (begin >= end) return ok_status();
  NEAP_TRY(unmap_block(block, begin, end));
  return drop_range_if_empty(block);
}

Status Impl::drop_range_if_empty(Block* block) {
  if (block->is_split() || block->mapped) return ok_status();
  ExpandableRange* const range = block->range;
  NEAP_TRY(source.unreserve(range->address, range->size));
  Bin& bin = *block->bin;
  bin.unmapped.erase(0, block->address);
  slab.give(block);
  if (bin.pool->owner != nullptr) --bin.pool->owner->segments;
  std::erase_if(ranges, [range](const auto& r) { return r.get() == range; });
  return ok_status();
}

}  // namespace neap::cache
