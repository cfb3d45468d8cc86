#include "report/address_space.h"

#include <algorithm>

namespace neap::report {

using trace::EventKind;

void AddressSpace::load(const trace::DeviceRecording& device) {
  for (const trace::Segment& segment : device.segments) {
    add_segment(segment.address, {segment.size, segment.stream, segment.pool, segment.expandable,
                                  segment.small_pool});
    for (const trace::Block& block : device.blocks_of(segment)) {
      if (block.state == trace::BlockState::kFree) continue;
      blocks_[block.address] = {block.size, block.requested != 0 ? block.requested : block.size,
                                kBeforeTrace, 0, block.state == trace::BlockState::kPendingFree};
    }
  }
}

AddressSpace::Segments::const_iterator AddressSpace::segment_of(std::uint64_t address) const {
  auto it = segments_.upper_bound(address);
  if (it == segments_.begin()) return segments_.end();
  --it;
  return address - it->first < it->second.size ? it : segments_.end();
}

void AddressSpace::add_segment(std::uint64_t address, const SegmentRange& range) {
  reserved_ += range.size;
  auto [it, fresh] = segments_.insert({address, range});
  if (!fresh) {  // the trace lacks the free of the older segment
    reserved_ -= it->second.size;
    it->second = range;
  }
  if (!range.expandable) return;
  // Pages of one expandable segment form one range.
  if (const auto next = std::next(it);
      next != segments_.end() && next->second.expandable && next->first == address + range.size &&
      next->second.stream == range.stream && next->second.pool == range.pool) {
    it->second.size += next->second.size;
    segments_.erase(next);
  }
  if (it == segments_.begin()) return;
  if (const auto before = std::prev(it);
      before->second.expandable && before->first + before->second.size == address &&
      before->second.stream == range.stream && before->second.pool == range.pool) {
    before->second.size += it->second.size;
    segments_.erase(it);
  }
}

void AddressSpace::remove_segment(std::uint64_t address, std::uint64_t size) {
  const auto found = segment_of(address);
  if (found == segments_.end()) return;
  const auto [begin, range] = *found;
  segments_.erase(found);
  const std::uint64_t end = begin + range.size;
  const std::uint64_t cut = std::min(size, end - address);
  reserved_ -= cut;
  if (address > begin) {
    SegmentRange low = range;
    low.size = address - begin;
    segments_[begin] = low;
  }
  if (address + cut < end) {
    SegmentRange high = range;
    high.size = end - address - cut;
    segments_[address + cut] = high;
  }
}

std::uint64_t AddressSpace::block_size(std::uint64_t requested, std::uint64_t address,
                                       std::uint64_t next_block) const {
  const std::uint64_t rounded = settings_.round(Bytes(requested)).count();
  const auto segment = segment_of(address);
  if (segment == segments_.end() || segment->second.expandable || segment->second.small_pool)
    return rounded;
  const std::uint64_t gap = std::min(next_block, segment->first + segment->second.size) - address;
  if (gap <= rounded) return rounded;
  const bool split =
      Bytes(rounded) < settings_.max_split_size && gap - rounded > cache::kSmallSize.count();
  return split ? rounded : gap;
}

void AddressSpace::settle_sizes() {
  for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
    const auto next = std::next(it);
    it->second.size = std::max(
        it->second.size,
        block_size(it->second.requested, it->first, next == blocks_.end() ? ~0ull : next->first));
  }
}

LiveBlock& AddressSpace::add_block(std::uint64_t address, std::uint64_t requested) {
  auto next = blocks_.upper_bound(address);
  const std::uint64_t size =
      block_size(requested, address, next == blocks_.end() ? ~0ull : next->first);
  const auto it = blocks_.insert_or_assign(next, address, LiveBlock{});
  it->second.size = size;
  it->second.requested = requested;
  return it->second;
}

LiveBlock* AddressSpace::find_block(std::uint64_t address) {
  const auto it = blocks_.find(address);
  return it == blocks_.end() ? nullptr : &it->second;
}

LiveBlock AddressSpace::remove_block(std::uint64_t address) {
  const auto it = blocks_.find(address);
  if (it == blocks_.end()) return {};
  const LiveBlock block = it->second;
  blocks_.erase(it);
  return block;
}

void rewind(AddressSpace& space, const trace::DeviceRecording& device) {
  for (auto event = device.events.rbegin(); event != device.events.rend(); ++event) {
    switch (event->kind) {
      case EventKind::kAlloc:
        space.remove_block(event->address);
        break;
      case EventKind::kFreeRequested:
        if (LiveBlock* block = space.find_block(event->address))
          block->pending_free = false;
        else  // its free_completed came after the end or was not recorded
          space.add_block(event->address, event->size);
        break;
      case EventKind::kFreeCompleted: {
        LiveBlock& block = space.add_block(event->address, event->size);
        block.pending_free = true;
        block.event = kBeforeTrace;
        break;
      }
      case EventKind::kSegmentAlloc:
      case EventKind::kSegmentMap:
        space.remove_segment(event->address, event->size);
        break;
      case EventKind::kSegmentFree:
        space.add_segment(event->address, {event->size, event->stream, event->pool, false,
                                           Bytes(event->size) <= cache::kSmallSegment});
        break;
      case EventKind::kSegmentUnmap:
        space.add_segment(event->address, {event->size, event->stream, event->pool, true, false});
        break;
      default:
        break;
    }
  }
  for (auto& [address, block] : space.blocks()) block.event = kBeforeTrace;
  space.settle_sizes();
}

cache::Settings settings_of(const trace::Recording& recording) {
  cache::Settings settings;
  if (!recording.settings.present) return settings;
  if (auto parsed = cache::Settings::parse(recording.settings.conf); parsed.ok())
    settings = *parsed;
  if (recording.settings.max_split_size > 0)
    settings.max_split_size = Bytes(static_cast<std::uint64_t>(recording.settings.max_split_size));
  settings.roundup_power2_divisions = recording.settings.roundup_power2_divisions;
  return settings;
}

}  // namespace neap::report
