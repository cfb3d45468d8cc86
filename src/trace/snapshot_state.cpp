// Converts dicts of a snapshot's final state into records: segments, and blocks with their history.
#include "base/format.h"
#include "base/text.h"
#include "trace/snapshot_fields.h"

namespace neap::trace::snapshot {

std::string Store::describe(Value v) const {
  switch (v.tag()) {
    case Tag::kNone:
      return "None";
    case Tag::kFalse:
      return "False";
    case Tag::kTrue:
      return "True";
    case Tag::kInt:
    case Tag::kWide:
      return format("{}", static_cast<std::int64_t>(bits(v)));
    case Tag::kBig:
      return format("{}", bits(v));
    case Tag::kHuge:
      return "an integer of more than 64 bits";
    case Tag::kReal:
      return format("{}", real(v));
    case Tag::kText: {
      const std::string_view text = texts.text(static_cast<std::uint32_t>(v.payload()));
      return format("\"{}\"", excerpt(text, 40));
    }
    case Tag::kList:
    case Tag::kStack:
    case Tag::kPool:
      return "a list";
    case Tag::kOpaque:
      return "bytes";
    default:
      return "a dict";
  }
}

bool Store::wrong(std::string_view record, Word key, Value v) {
  return fail(format("has a {} whose \"{}\" is {}", record, name_of(key), describe(v)));
}

bool Store::pool_of(std::string_view record, Word key, Value v, std::uint8_t& out) {
  if (v.tag() == Tag::kNone) return true;
  if (v.tag() == Tag::kList && list(v).count == 2) {
    const Value a = item(list(v), 0);
    const Value b = item(list(v), 1);
    if (is_integer(a) && is_integer(b)) v = {Tag::kPool, pool_pair(bits(a), bits(b))};
  }
  if (v.tag() != Tag::kPool) return wrong(record, key, v);
  const auto& pair = pools[v.payload()];
  if (pair.first == 0 && pair.second == 0) return true;
  std::uint8_t& index = pool_index[v.payload()];
  if (index == 0) {
    if (used_pools.size() == 256) {
      too_many_pools = true;
      out = 255;
      return true;
    }
    index = static_cast<std::uint8_t>(used_pools.size());
    used_pools.push_back(pair);
  }
  out = index;
  return true;
}

bool Store::make_block(std::span<const Value> pairs, Value& out) {
  Block b;
  b.address = kNoAddress;
  bool has_size = false;
  bool has_frames = false;
  bool has_requested = false;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const Value v = pairs[i + 1];
    switch (word(pairs[i])) {
      case Word::kAddress:
        if (!is_integer(v)) return wrong("block", Word::kAddress, v);
        b.address = bits(v);
        break;
      case Word::kSize:
        if (!unsigned_of("block", Word::kSize, v, b.size)) return false;
        has_size = true;
        break;
      case Word::kRequestedSize:
        if (!unsigned_of("block", Word::kRequestedSize, v, b.requested)) return false;
        has_requested = true;
        break;
      case Word::kFrames:
        if (!stack_of("block", v, b.stack)) return false;
        has_frames = true;
        break;
      case Word::kState: {
        Word state{};
        if (!word_of("block", Word::kState, v, state)) return false;
        if (state == Word::kActiveAllocated) {
          b.state = BlockState::kAllocated;
        } else if (state == Word::kActivePendingFree || state == Word::kActiveAwaitingFree) {
          b.state = BlockState::kPendingFree;
        } else if (state == Word::kInactive) {
          b.state = BlockState::kFree;
        } else {
          return wrong("block", Word::kState, v);
        }
        break;
      }
      case Word::kHistory:
        // Old files lack requested_size and frames. Their history has the newest use first.
        if (v.tag() == Tag::kList && list(v).count > 0) {
          const Value newest = item(list(v), 0);
          if (newest.tag() != Tag::kHistory) return wrong("block", Word::kHistory, v);
          const History& h = histories_[newest.payload()];
          if (!has_requested) b.requested = h.real_size;
          if (!has_frames) b.stack = h.stack;
        }
        break;
      default:
        break;
    }
  }
  if (!has_size) return fail("has a block without \"size\"");
  out = {Tag::kBlock, blocks.size()};
  blocks.push_back(b);
  return true;
}

bool Store::make_segment(std::span<const Value> pairs, Value& out) {
  SegmentRecord r;
  Segment& s = r.segment;
  bool has_address = false;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const Value v = pairs[i + 1];
    switch (word(pairs[i])) {
      case Word::kDevice:
        if (!device_of("segment", v, r.device)) return false;
        break;
      case Word::kAddress:
        if (!is_integer(v)) return wrong("segment", Word::kAddress, v);
        s.address = bits(v);
        has_address = true;
        break;
      case Word::kTotalSize:
        if (!unsigned_of("segment", Word::kTotalSize, v, s.size)) return false;
        break;
      case Word::kStream:
        if (!is_integer(v)) return wrong("segment", Word::kStream, v);
        s.stream = bits(v);
        break;
      case Word::kSegmentType: {
        Word type{};
        if (!word_of("segment", Word::kSegmentType, v, type)) return false;
        if (type != Word::kSmall && type != Word::kLarge)
          return wrong("segment", Word::kSegmentType, v);
        s.small_pool = type == Word::kSmall;
        break;
      }
      case Word::kSegmentPoolId:
        if (!pool_of("segment", Word::kSegmentPoolId, v, s.pool)) return false;
        break;
      case Word::kIsExpandable:
        s.expandable = v.tag() == Tag::kTrue;
        break;
      case Word::kFrames:
        if (!stack_of("segment", v, s.stack)) return false;
        break;
      case Word::kBlocks:
        if (v.tag() != Tag::kList || (list(v).count > 0 && item(list(v), 0).tag() != Tag::kBlock))
          return wrong("segment", Word::kBlocks, v);
        r.blocks = v;
        break;
      default:
        break;
    }
  }
  if (!has_address) return fail("has a segment without \"address\"");
  out = {Tag::kSegment, segments.size()};
  segments.push_back(r);
  return true;
}

bool Store::make_history(std::span<const Value> pairs, Value& out) {
  History h;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const Value v = pairs[i + 1];
    switch (word(pairs[i])) {
      case Word::kRealSize:
        if (!unsigned_of("block history", Word::kRealSize, v, h.real_size)) return false;
        break;
      case Word::kFrames:
        if (!stack_of("block history", v, h.stack)) return false;
        break;
      default:
        break;
    }
  }
  out = {Tag::kHistory, histories_.size()};
  histories_.push_back(h);
  return true;
}

}  // namespace neap::trace::snapshot
