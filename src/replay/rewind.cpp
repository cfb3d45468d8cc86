#include "replay/rewind.h"

#include <algorithm>

#include "cache/address_map.h"

namespace neap::replay {
namespace {

using trace::Event;
using trace::EventKind;

class Rewinder {
 public:
  Rewinder(const trace::DeviceRecording& device, const cache::Settings& settings,
           Anomalies& anomalies)
      : device_(device), settings_(settings), anomalies_(anomalies) {}

  Rewound run() {
    if (device_.segments.empty())
      play_forward();
    else
      take_final_state();
    const bool pools = std::any_of(ranges_.begin(), ranges_.end(),
                                   [](const auto& entry) { return entry.second.pool != 0; }) ||
                       std::any_of(device_.events.begin(), device_.events.end(),
                                   [](const Event& event) { return event.pool != 0; });
    if (pools) out_.alloc_pools.resize(device_.events.size());
    for (std::size_t i = device_.events.size(); i-- > 0;) undo(device_.events[i], i, pools);
    out_.ranges = std::move(ranges_);
    live_.for_each(
        [&](std::uint64_t, std::uint32_t index) { out_.blocks.push_back(blocks_[index - 1]); });
    std::sort(out_.blocks.begin(), out_.blocks.end(),
              [](const RewoundBlock& a, const RewoundBlock& b) { return a.address < b.address; });
    return std::move(out_);
  }

 private:
  void add_live(const RewoundBlock& block) {
    if (const std::uint32_t known = live_.find(block.address); known != 0) {
      ++anomalies_.segments_inconsistent;
      blocks_[known - 1] = block;
      return;
    }
    std::uint32_t slot;
    if (spare_.empty()) {
      blocks_.push_back(block);
      slot = static_cast<std::uint32_t>(blocks_.size());
    } else {
      slot = spare_.back();
      spare_.pop_back();
      blocks_[slot - 1] = block;
    }
    live_.insert(block.address, slot);
  }

  void take_final_state() {
    for (const trace::Segment& segment : device_.segments) {
      ranges_[segment.address] = {segment.size, segment.stream, segment.pool, segment.small_pool,
                                  segment.expandable};
      for (const trace::Block& block : device_.blocks_of(segment))
        if (block.state != trace::BlockState::kFree)
          add_live({block.address, block.size, block.requested, segment.stream,
                    block.state == trace::BlockState::kPendingFree});
    }
  }

  /// Without final segments the events must be complete; they then give the final state.
  void play_forward() {
    for (const Event& event : device_.events) {
      switch (event.kind) {
        case EventKind::kAlloc:
          drop_live(event.address);
          add_live({event.address, 0, event.size, event.stream, false});
          break;
        case EventKind::kFreeRequested:
          if (const std::uint32_t slot = live_.find(event.address); slot != 0)
            blocks_[slot - 1].pending = true;
          break;
        case EventKind::kFreeCompleted:
          drop_live(event.address);
          break;
        case EventKind::kSegmentAlloc:
        case EventKind::kSegmentMap:
          add_range(event);
          break;
        case EventKind::kSegmentFree:
        case EventKind::kSegmentUnmap:
          remove_range(event.address, event.size);
          break;
        default:
          break;
      }
    }
    anomalies_ = {};
  }

  bool drop_live(std::uint64_t address) {
    const std::uint32_t slot = live_.take(address);
    if (slot != 0) spare_.push_back(slot);
    return slot != 0;
  }

  void undo(const Event& event, std::size_t index, bool pools) {
    switch (event.kind) {
      case EventKind::kAlloc:
        if (pools) out_.alloc_pools[index] = event.pool != 0 ? event.pool : pool_at(event.address);
        if (!drop_live(event.address)) ++anomalies_.allocs_never_freed;
        break;
      case EventKind::kFreeRequested:
        if (const std::uint32_t slot = live_.find(event.address); slot != 0)
          blocks_[slot - 1].pending = false;
        else
          ++anomalies_.frees_of_unknown;
        break;
      case EventKind::kFreeCompleted:
        add_live({event.address, 0, event.size, event.stream, true});
        break;
      case EventKind::kSegmentAlloc:
      case EventKind::kSegmentMap:
        remove_range(event.address, event.size);
        break;
      case EventKind::kSegmentFree:
      case EventKind::kSegmentUnmap:
        add_range(event);
        break;
      default:
        break;
    }
  }

  [[nodiscard]] std::uint8_t pool_at(std::uint64_t address) const {
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin()) return 0;
    --at;
    return address < at->first + at->second.size ? at->second.pool : std::uint8_t{0};
  }

  /// The pool of a range that is known only from an event: from its size, or from neighbours in the
  /// same reservation.
  [[nodiscard]] Range describe(const Event& event) const {
    Range range{event.size, event.stream, event.pool, false,
                event.kind == EventKind::kSegmentMap || event.kind == EventKind::kSegmentUnmap};
    if (!range.expandable) {
      range.small_pool = event.size == cache::kSmallSegment.count();
      return range;
    }
    range.small_pool = event.size % settings_.large_segment_size.count() != 0;
    constexpr std::uint64_t kReach = 1ull << 36;
    auto above = ranges_.lower_bound(event.address);
    const auto adopt = [&](const auto& entry, std::uint64_t distance) {
      const Range& other = entry.second;
      if (!other.expandable || other.stream != event.stream || distance > kReach) return false;
      if (range.pool == 0) range.pool = other.pool;
      range.small_pool = other.small_pool;
      return true;
    };
    if (above != ranges_.begin()) {
      const auto below = std::prev(above);
      if (adopt(*below, event.address - below->first - below->second.size)) return range;
    }
    if (above != ranges_.end())
      static_cast<void>(adopt(*above, above->first - event.address - event.size));
    return range;
  }

  void add_range(const Event& event) {
    Range range = describe(event);
    std::uint64_t address = event.address;
    auto next = ranges_.lower_bound(address);
    if (next != ranges_.end() && next->first < address + range.size) {
      ++anomalies_.segments_inconsistent;
      return;
    }
    const auto same = [&](const Range& other) {
      return range.expandable && other.expandable && other.stream == range.stream &&
             other.pool == range.pool && other.small_pool == range.small_pool;
    };
    if (next != ranges_.end() && next->first == address + range.size && same(next->second)) {
      range.size += next->second.size;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.size > address) {
        ++anomalies_.segments_inconsistent;
        return;
      }
      if (before->first + before->second.size == address && same(before->second)) {
        before->second.size += range.size;
        return;
      }
    }
    ranges_.emplace(address, range);
  }

  void remove_range(std::uint64_t address, std::uint64_t size) {
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin() ||
        std::prev(at)->first + std::prev(at)->second.size < address + size) {
      ++anomalies_.segments_inconsistent;
      return;
    }
    --at;
    const Range whole = at->second;
    const std::uint64_t start = at->first;
    if (!whole.expandable && (start != address || whole.size != size)) {
      ++anomalies_.segments_inconsistent;
      return;
    }
    ranges_.erase(at);
    if (start < address) {
      Range part = whole;
      part.size = address - start;
      ranges_.emplace(start, part);
    }
    if (start + whole.size > address + size) {
      Range part = whole;
      part.size = start + whole.size - address - size;
      ranges_.emplace(address + size, part);
    }
  }

  const trace::DeviceRecording& device_;
  const cache::Settings& settings_;
  Anomalies& anomalies_;
  cache::AddressMap<std::uint32_t> live_;  ///< address -> index in blocks_ + 1
  std::vector<RewoundBlock> blocks_;
  std::vector<std::uint32_t> spare_;
  std::map<std::uint64_t, Range> ranges_;
  Rewound out_;
};

/// Maximum bytes that an unsplit block can have beyond its rounded size.
std::uint64_t most_slack(const Range& range, std::uint64_t size, const cache::Settings& settings) {
  if (range.small_pool || range.expandable) return cache::kMinBlockSize.count() - 1;
  if (size >= settings.max_split_size.count()) return ~0ull;
  return cache::kSmallSize.count();
}

std::uint64_t rounded(const RewoundBlock& block, const Workload& workload) {
  return workload.settings.round(Bytes(block.requested) + workload.version.padding).count();
}

/// Takes the distance to the allocation after a block as its size, if the allocator could have
/// given that size to the request.
void learn_size(RewoundBlock& block, std::uint64_t next, const Rewound& state,
                const Workload& workload) {
  const auto above = state.ranges.upper_bound(block.address);
  if (above == state.ranges.begin()) return;
  const auto& [start, range] = *std::prev(above);
  if (next >= start + range.size) return;
  const std::uint64_t size = next - block.address;
  const std::uint64_t least = rounded(block, workload);
  if (size >= least && size - least <= most_slack(range, least, workload.settings))
    block.size = size;
}

}  // namespace

Rewound rewind(const trace::DeviceRecording& device, const cache::Settings& settings,
               Anomalies& anomalies) {
  return Rewinder(device, settings, anomalies).run();
}

void learn_sizes(Rewound& state, const Workload& workload) {
  std::map<std::uint64_t, RewoundBlock*> live;  // null: allocated by an event
  std::size_t unknown = 0;
  for (RewoundBlock& block : state.blocks) {
    live.emplace(block.address, &block);
    unknown += block.size == 0 ? 1 : 0;
  }
  for (const Event& event : workload.device->events) {
    if (unknown == 0) return;
    const bool allocates = event.kind == EventKind::kAlloc;
    if (!allocates && event.kind != EventKind::kFreeCompleted) continue;
    const auto at = live.try_emplace(event.address, nullptr).first;
    if (at->second != nullptr && at->second->size == 0) --unknown;
    at->second = nullptr;
    if (!allocates) {
      live.erase(at);
    } else if (at != live.begin()) {
      RewoundBlock* before = std::prev(at)->second;
      if (before == nullptr || before->size != 0) continue;
      learn_size(*before, event.address, state, workload);
      if (before->size != 0) --unknown;
    }
  }
}

void lay_out(const Rewound& state, Workload& workload) {
  using View = cache::CachingAllocator;
  auto block = state.blocks.begin();
  for (const auto& [address, range] : state.ranges) {
    View::SegmentView segment;
    segment.address = address;
    segment.size = Bytes(range.size);
    segment.stream = range.stream;
    segment.small_pool = range.small_pool;
    segment.expandable = range.expandable;
    segment.pool = range.pool;
    const std::uint64_t end = address + range.size;
    std::uint64_t at = address;
    for (; block != state.blocks.end() && block->address < address; ++block)
      ++workload.anomalies.segments_inconsistent;
    for (; block != state.blocks.end() && block->address < end; ++block) {
      if (block->address < at) {
        ++workload.anomalies.segments_inconsistent;
        continue;
      }
      if (block->address > at)
        segment.blocks.push_back(
            {at, Bytes(block->address - at), Bytes(), View::BlockView::State::kFree});
      const auto following = std::next(block);
      const std::uint64_t limit =
          following != state.blocks.end() && following->address < end ? following->address : end;
      std::uint64_t size = block->size;
      if (size == 0 || block->address + size > limit) {
        size = rounded(*block, workload);
        const std::uint64_t room = limit - block->address;
        if (size > room) {
          ++workload.anomalies.segments_inconsistent;
          size = room;
        } else if (room - size <= most_slack(range, size, workload.settings)) {
          size = room;
        } else if (!range.small_pool && !range.expandable) {
          ++workload.guessed_sizes;
        }
      }
      segment.blocks.push_back({block->address, Bytes(size), Bytes(block->requested),
                                block->pending ? View::BlockView::State::kPendingFree
                                               : View::BlockView::State::kAllocated});
      at = block->address + size;
    }
    if (at < end)
      segment.blocks.push_back({at, Bytes(end - at), Bytes(), View::BlockView::State::kFree});
    workload.initial_segments.push_back(std::move(segment));
  }
  workload.anomalies.segments_inconsistent +=
      static_cast<std::uint64_t>(std::distance(block, state.blocks.end()));
}

}  // namespace neap::replay
