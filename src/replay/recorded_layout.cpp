#include "replay/recorded_layout.h"

#include <algorithm>

namespace neap::replay {
namespace {

using cache::Address;

/// Limit of conflicts examined per allocation. There may be many free blocks of other pools, and a
/// few proofs separate two pools.
constexpr int kMostCandidates = 64;

}  // namespace

RecordedLayout::RecordedLayout(const Workload& workload) : w_(workload) {
  add_initial();
  node_of_op_.reserve(w_.ops.size());
  for (const Op& op : w_.ops) node_of_op_.push_back(apply(op));
  know_final_pools();
}

void RecordedLayout::add_initial() {
  using State = cache::CachingAllocator::BlockView::State;
  for (const auto& segment : w_.initial_segments) {
    const auto number = static_cast<std::uint32_t>(nodes_.size());
    nodes_.push_back({segment.address,
                      segment.address + segment.size.count(),
                      segment.stream,
                      segment.small_pool,
                      segment.expandable,
                      std::nullopt,
                      {}});
    initial_nodes_.push_back(number);
    for (const auto& block : segment.blocks) {
      if (block.state == State::kFree)
        insert_free(block.address, block.size.count(), number);
      else
        pieces_[block.address] = {block.size.count(), number, false};
    }
  }
}

void RecordedLayout::know_final_pools() {
  for (const trace::Segment& segment : w_.device->segments)
    if (const auto piece = pieces_.find(segment.address); piece != pieces_.end())
      nodes_[piece->second.node].pool = segment.pool;
}

std::uint32_t RecordedLayout::apply(const Op& op) {
  const auto& events = w_.device->events;
  switch (op.kind) {
    case OpKind::kAlloc:
      return allocate(op, events[op.event]);
    case OpKind::kFree:
    case OpKind::kCompleteFree: {
      const std::uint32_t birth = w_.blocks[op.block].birth_event;
      free(birth == kNoEvent ? w_.initial_addresses[op.block] : events[birth].address);
      return kNoNode;
    }
    case OpKind::kSegmentAlloc:
    case OpKind::kSegmentMap:
      fresh_segment_ = true;
      return add_segment(events[op.event], op.kind == OpKind::kSegmentMap);
    case OpKind::kSegmentFree:
    case OpKind::kSegmentUnmap:
      return remove_segment(events[op.event]);
    case OpKind::kOom:
      fresh_segment_ = false;
      return kNoNode;
    default:
      return kNoNode;
  }
}

std::uint32_t RecordedLayout::allocate(const Op& op, const trace::Event& event) {
  const std::uint64_t size = w_.settings.round(Bytes(op.size) + w_.version.padding).count();
  const auto piece = pieces_.find(event.address);
  if (piece == pieces_.end() || !piece->second.free || piece->second.size < size) {
    fresh_segment_ = false;
    return kNoNode;
  }
  const Piece chosen = piece->second;
  collect_conflicts(chosen, event.address, size);
  fresh_segment_ = false;
  take_free(piece);
  const std::uint64_t rest = chosen.size - size;
  const bool split = splits(nodes_[chosen.node], size, rest);
  pieces_[event.address] = {split ? size : chosen.size, chosen.node, false};
  if (split) insert_free(event.address + size, rest, chosen.node);
  return chosen.node;
}

bool RecordedLayout::splits(const SegmentNode& node, std::uint64_t size, std::uint64_t rest) const {
  if (node.small_pool || w_.settings.expandable_segments)
    return rest >= cache::kMinBlockSize.count();
  return size < w_.settings.max_split_size.count() && rest > cache::kSmallSize.count();
}

/// Collects free blocks that precede the chosen one in the allocator's search, or that would have
/// made a new segment unnecessary.
void RecordedLayout::collect_conflicts(const Piece& chosen, Address at, std::uint64_t size) {
  const FreeList& list = free_list(nodes_[chosen.node]);
  const std::pair<std::uint64_t, Address> key{chosen.size, at};
  const std::uint64_t limit = w_.settings.max_split_size.count();
  int left = kMostCandidates;
  for (auto it = list.lower_bound({size, 0}); it != list.end() && left > 0; ++it, --left) {
    if (!fresh_segment_ && !(*it < key)) return;
    if (size < limit && it->first >= limit) return;
    if (size >= limit && it->first >= size + w_.settings.max_non_split_rounding.count()) return;
    const auto piece = pieces_.find(it->second);
    const std::uint32_t other = piece->second.node;
    if (other == chosen.node) continue;
    // The allocator prefers a block with less space after it to one that can grow.
    if (!fresh_segment_ && nodes_[other].expandable && is_at_edge(piece)) continue;
    if (nodes_[other].expandable && !w_.settings.expandable_segments) continue;
    add_conflict(chosen.node, other);
  }
}

void RecordedLayout::add_conflict(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t key = std::uint64_t{std::min(a, b)} << 32 | std::max(a, b);
  if (!known_conflicts_.insert(key).second) return;
  nodes_[a].conflicts.push_back(b);
  nodes_[b].conflicts.push_back(a);
}

bool RecordedLayout::is_at_edge(Pieces::const_iterator piece) const {
  const auto next = std::next(piece);
  return next == pieces_.end() || next->first != piece->first + piece->second.size;
}

void RecordedLayout::free(Address at) {
  const auto piece = pieces_.find(at);
  if (piece == pieces_.end() || piece->second.free) return;
  const Piece freed = piece->second;
  pieces_.erase(piece);
  insert_free(at, freed.size, freed.node);
}

/// Merges free neighbours of the same node.
RecordedLayout::Pieces::iterator RecordedLayout::insert_free(Address at, std::uint64_t size,
                                                             std::uint32_t node) {
  auto next = pieces_.lower_bound(at);
  if (next != pieces_.end() && next->second.free && next->second.node == node &&
      next->first == at + size) {
    size += next->second.size;
    const auto joined = next++;
    take_free(joined);
  }
  if (next != pieces_.begin()) {
    const auto before = std::prev(next);
    if (before->second.free && before->second.node == node &&
        before->first + before->second.size == at) {
      at = before->first;
      size += before->second.size;
      take_free(before);
    }
  }
  free_list(nodes_[node]).insert({size, at});
  return pieces_.insert_or_assign(at, Piece{size, node, true}).first;
}

void RecordedLayout::take_free(Pieces::iterator piece) {
  free_list(nodes_[piece->second.node]).erase({piece->second.size, piece->first});
  pieces_.erase(piece);
}

/// The reservation that contains a mapped range or that it extends.
std::uint32_t RecordedLayout::reservation_of(const trace::Event& event) const {
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    const SegmentNode& node = nodes_[i];
    if (node.expandable && node.stream == event.stream && event.address >= node.begin &&
        event.address <= node.end)
      return static_cast<std::uint32_t>(i);
  }
  return kNoNode;
}

std::uint32_t RecordedLayout::add_segment(const trace::Event& event, bool expandable) {
  std::uint32_t number = expandable ? reservation_of(event) : kNoNode;
  if (number == kNoNode) {
    number = static_cast<std::uint32_t>(nodes_.size());
    const bool small = expandable ? event.size % w_.settings.large_segment_size.count() != 0
                                  : event.size == cache::kSmallSegment.count();
    nodes_.push_back({event.address,
                      event.address + event.size,
                      event.stream,
                      small,
                      expandable,
                      std::nullopt,
                      {}});
  }
  SegmentNode& node = nodes_[number];
  node.end = std::max(node.end, event.address + event.size);
  if (event.pool != 0) node.pool = event.pool;
  insert_free(event.address, event.size, number);
  return number;
}

std::uint32_t RecordedLayout::remove_segment(const trace::Event& event) {
  auto piece = pieces_.upper_bound(event.address);
  if (piece == pieces_.begin()) return kNoNode;
  --piece;
  const Address begin = piece->first;
  const Piece whole = piece->second;
  const Address end = begin + whole.size;
  const Address hole_end = event.address + event.size;
  if (!whole.free || hole_end > end) return kNoNode;
  take_free(piece);
  if (begin < event.address) insert_free(begin, event.address - begin, whole.node);
  if (hole_end < end) insert_free(hole_end, end - hole_end, whole.node);
  return whole.node;
}

}  // namespace neap::replay
