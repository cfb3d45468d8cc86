// Reads, replaces and checks the whole state: snapshot, adopt and invariants.
#include <algorithm>

#include "base/format.h"
#include "cache/core.h"

namespace neap::cache {

using Impl = CachingAllocator::Impl;

namespace {

using BlockView = CachingAllocator::BlockView;
using Reservation = CachingAllocator::Reservation;
using SegmentView = CachingAllocator::SegmentView;

bool starts_segment(const Block* block) {
  return block->mapped && (block->previous == nullptr || !block->previous->mapped);
}

Status broken(const Block* block, std::string_view what) {
  return {ErrorCode::kInternal,
          format("Block at {:#x} of {} bytes {}", block->address, block->size, what)};
}

/// Builds the blocks of another allocator's segments, which arrive in address order.
class Adoption {
 public:
  Adoption(Impl& cache, const std::vector<Reservation>& reservations)
      : cache_(cache), reservations_(reservations) {}

  Status add(const SegmentView& segment) {
    PrivatePool* const owner = segment.pool == 0 ? nullptr : &cache_.private_pool(segment.pool);
    BlockPool& small = owner != nullptr ? owner->small : cache_.small_pool;
    BlockPool& large = owner != nullptr ? owner->large : cache_.large_pool;
    Bin& bin = cache_.bin_of(segment.small_pool ? small : large, segment.stream);
    if (segment.expandable) {
      NEAP_TRY(go_on_in_range(segment, bin));
    } else {
      close_range();
      if (owner != nullptr) ++owner->segments;
    }
    NEAP_TRY(add_blocks(segment, bin));
    cache_.reserved += segment.size.count();
    for (const BlockView& view : segment.blocks)
      if (view.state == BlockView::State::kPendingFree) NEAP_TRY(cache_.free(view.address, true));
    return ok_status();
  }

  /// Marks the remaining bytes of the last reservation as unmapped.
  void close_range() {
    if (range_ != nullptr) append_unmapped(*range_bin_, range_->address + range_->size.count());
    range_ = nullptr;
  }

 private:
  /// Appends a block after the last one. `joined`: both are in the same segment or reservation.
  Block* append(Bin& bin, Address at, std::uint64_t size, bool joined) {
    Block* const block = cache_.slab.take();
    block->bin = &bin;
    block->range = range_;
    block->address = at;
    block->size = size;
    block->previous = joined ? last_ : nullptr;
    if (joined && last_ != nullptr) last_->next = block;
    last_ = block;
    return block;
  }

  /// Appends the unmapped bytes between the last segment of the reservation and `end`.
  void append_unmapped(Bin& bin, Address end) {
    if (mapped_until_ >= end) return;
    Block* const block = append(bin, mapped_until_, end - mapped_until_, true);
    block->mapped = false;
    bin.unmapped.insert({0, mapped_until_, block});
  }

  /// Adds an expandable segment: opens its reservation unless it is open, and adds unmapped bytes
  /// up to the segment.
  Status go_on_in_range(const SegmentView& segment, Bin& bin) {
    const auto home =
        std::find_if(reservations_.begin(), reservations_.end(), [&](const Reservation& r) {
          return r.address <= segment.address &&
                 segment.address + segment.size.count() <= r.address + r.size.count();
        });
    if (home == reservations_.end())
      return {ErrorCode::kInvalidArgument,
              format("Expandable segment at {:#x} lies in no reservation", segment.address)};
    if (range_ == nullptr || range_->address != home->address) {
      close_range();
      const Bytes page =
          bin.pool->small ? cache_.options.page_small : cache_.options.settings.large_segment_size;
      cache_.ranges.push_back(std::make_unique<ExpandableRange>(
          ExpandableRange{home->address, home->size, page.count()}));
      range_ = cache_.ranges.back().get();
      range_bin_ = &bin;
      mapped_until_ = range_->address;
      last_ = nullptr;
      if (bin.pool->owner != nullptr) ++bin.pool->owner->segments;
    }
    append_unmapped(bin, segment.address);
    mapped_until_ = segment.address + segment.size.count();
    return ok_status();
  }

  Status add_blocks(const SegmentView& segment, Bin& bin) {
    bool joined = segment.expandable;
    Address at = segment.address;
    for (const BlockView& view : segment.blocks) {
      if (view.address != at || view.size.is_zero())
        return {
            ErrorCode::kInvalidArgument,
            format("Blocks of the segment at {:#x} leave a hole at {:#x}", segment.address, at)};
      at += view.size.count();
      Block* const block = append(bin, view.address, view.size.count(), joined);
      joined = true;
      if (view.state == BlockView::State::kFree) {
        cache_.insert_free(block);
      } else {
        make_live(block, view.requested.count());
      }
    }
    if (at != segment.address + segment.size.count())
      return {ErrorCode::kInvalidArgument,
              format("Blocks of the segment at {:#x} end at {:#x}, not at its end", segment.address,
                     at)};
    return ok_status();
  }

  void make_live(Block* block, std::uint64_t requested) {
    block->state = BlockState::kAllocated;
    block->requested = requested;
    cache_.live.insert(block->address, block);
    cache_.allocated += block->size;
    cache_.active += block->size;
    cache_.requested += requested;
  }

  Impl& cache_;
  const std::vector<Reservation>& reservations_;
  Block* last_ = nullptr;
  ExpandableRange* range_ = nullptr;  ///< the reservation being filled
  Bin* range_bin_ = nullptr;
  Address mapped_until_ = 0;  ///< end of the mapped bytes in it
};

}  // namespace

std::vector<CachingAllocator::SegmentView> Impl::snapshot() const {
  std::vector<SegmentView> segments;
  slab.for_each([&](const Block* first) {
    if (!starts_segment(first)) return;
    SegmentView view;
    view.address = first->address;
    view.stream = first->bin->stream;
    view.small_pool = first->bin->pool->small;
    view.expandable = first->range != nullptr;
    view.pool = first->bin->pool->owner == nullptr ? 0 : first->bin->pool->owner->id;
    for (const Block* block = first; block != nullptr && block->mapped; block = block->next) {
      const auto state = block->state == BlockState::kAllocated ? BlockView::State::kAllocated
                         : block->state == BlockState::kPending ? BlockView::State::kPendingFree
                                                                : BlockView::State::kFree;
      view.blocks.push_back({block->address, Bytes(block->size),
                             Bytes(block->is_free() ? 0 : block->requested), state});
      view.size += Bytes(block->size);
    }
    segments.push_back(std::move(view));
  });
  std::sort(segments.begin(), segments.end(),
            [](const SegmentView& a, const SegmentView& b) { return a.address < b.address; });
  return segments;
}

Status Impl::adopt(const std::vector<SegmentView>& segments,
                   const std::vector<Reservation>& reservations) {
  if (reserved != 0 || counts.allocs != 0)
    return {ErrorCode::kInvalidArgument, "Only a fresh allocator can take over segments"};
  std::vector<const SegmentView*> order;
  order.reserve(segments.size());
  for (const SegmentView& segment : segments) order.push_back(&segment);
  std::sort(order.begin(), order.end(),
            [](const SegmentView* a, const SegmentView* b) { return a->address < b->address; });
  Adoption adoption(*this, reservations);
  for (const SegmentView* segment : order) NEAP_TRY(adoption.add(*segment));
  adoption.close_range();
  counts = {};
  peak_reserved = reserved;
  peak_allocated = allocated;
  peak_active = active;
  peak_requested = requested;
  return ok_status();
}

template <class Find>
Block* Impl::find_in_pools(Find find) {
  const auto in_pool = [&](BlockPool& pool) -> Block* {
    for (const auto& bin : pool.bins)
      if (Block* const block = find(*bin); block != nullptr) return block;
    return nullptr;
  };
  if (Block* const block = in_pool(large_pool); block != nullptr) return block;
  if (Block* const block = in_pool(small_pool); block != nullptr) return block;
  for (const auto& [id, pool] : private_pools) {
    if (Block* const block = in_pool(pool->large); block != nullptr) return block;
    if (Block* const block = in_pool(pool->small); block != nullptr) return block;
  }
  return nullptr;
}

Status Impl::release_range(Address at, Bytes size) {
  const Address end = at + size.count();
  Block* const block = find_in_pools([&](const Bin& bin) -> Block* {
    for (auto c = bin.free.lower_bound(size.count(), at); c != bin.free.end();
         c = bin.free.next(c)) {
      Block* const candidate = bin.free[c].block;
      if (candidate->address == at && candidate->size == size.count()) return candidate;
      if (candidate->range != nullptr && candidate->address <= at &&
          end <= candidate->address + candidate->size)
        return candidate;
      if (candidate->range == nullptr && candidate->size > size.count() &&
          !options.settings.expandable_segments)
        break;
    }
    return nullptr;
  });
  if (block == nullptr) return {ErrorCode::kNotFound, format("{} at {:#x} is not free", size, at)};
  if (block->range == nullptr) {
    if (block->is_split())
      return {ErrorCode::kBusy, format("The free block at {:#x} is part of a split segment", at)};
    return release_segment(block);
  }
  const std::uint64_t page = block->range->page;
  if ((at - block->range->address) % page != 0 || size.count() % page != 0)
    return {ErrorCode::kInvalidArgument,
            format("{} at {:#x} is not made of whole pages of {}", size, at, Bytes(page))};
  NEAP_TRY(unmap_block(block, at, end));
  return drop_range_if_empty(block);
}

Status Impl::map_range(Address at, Bytes size) {
  Block* const block = find_in_pools([&](const Bin& bin) -> Block* {
    const auto found = bin.unmapped.lower_bound(0, at);
    return found != bin.unmapped.end() && bin.unmapped[found].address == at
               ? bin.unmapped[found].block
               : nullptr;
  });
  if (block == nullptr || block->size < size.count() || size.count() % block->range->page != 0)
    return {ErrorCode::kNotFound, format("No unmapped range of {} begins at {:#x}", size, at)};
  if (map_block(block, size.count())) return ok_status();
  if (!failure.ok()) return std::exchange(failure, ok_status());
  return {ErrorCode::kOutOfDeviceMemory, format("{} could not be mapped", size)};
}

Status Impl::check_invariants() const {
  std::uint64_t mapped_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t active_bytes = 0;
  std::size_t live_blocks = 0;
  Status first;
  const auto check = [&](const Block* block) -> Status {
    if (block->size == 0) return broken(block, "is empty");
    if (block->previous != nullptr &&
        (block->previous->next != block ||
         block->previous->address + block->previous->size != block->address))
      return broken(block, "does not continue the block before it");
    if (block->next != nullptr && block->next->previous != block)
      return broken(block, "is not known to the block after it");
    const Block* next = block->next;
    if (next != nullptr && block->is_free() && next->is_free() && block->mapped == next->mapped)
      return broken(block, "is free next to a free block");
    if (block->mapped) mapped_bytes += block->size;
    const FreeIndex& index = block->mapped ? block->bin->free : block->bin->unmapped;
    const auto found = index.lower_bound(block->mapped ? block->size : 0, block->address);
    const bool indexed = found != index.end() && index[found].block == block;
    if (indexed != block->is_free()) return broken(block, "is in the wrong index");
    if (block->is_free()) return ok_status();
    ++live_blocks;
    if (live.find(block->address) != block) return broken(block, "is not in the map");
    active_bytes += block->size;
    if (block->state == BlockState::kAllocated) allocated_bytes += block->size;
    return ok_status();
  };
  slab.for_each([&](const Block* block) {
    if (first.ok()) first = check(block);
  });
  NEAP_TRY(first);
  if (mapped_bytes != reserved || allocated_bytes != allocated || active_bytes != active ||
      live_blocks != live.size())
    return {ErrorCode::kInternal,
            format("Blocks hold {} reserved, {} allocated, {} active bytes in {} live blocks; the "
                   "counters say {}, {}, {}, {}",
                   mapped_bytes, allocated_bytes, active_bytes, live_blocks, reserved, allocated,
                   active, live.size())};
  return ok_status();
}

void Impl::give_everything_back() {
  slab.for_each([&](const Block* block) {
    if (!block->mapped) return;
    if (block->range == nullptr) {
      if (block->previous != nullptr) return;
      std::uint64_t size = 0;
      for (const Block* part = block; part != nullptr; part = part->next) size += part->size;
      static_cast<void>(source.free(block->address, Bytes(size)));
    } else if (starts_segment(block)) {
      std::uint64_t size = 0;
      for (const Block* part = block; part != nullptr && part->mapped; part = part->next)
        size += part->size;
      static_cast<void>(source.unmap(block->address, Bytes(size)));
    }
  });
  for (const auto& range : ranges) static_cast<void>(source.unreserve(range->address, range->size));
}

}  // namespace neap::cache
