// Dicts of a snapshot into records, by their keys.
#include <algorithm>

#include "base/format.h"
#include "trace/snapshot_store.h"

namespace neap::trace::snapshot {
namespace {

Word word(Value v) {
  return v.tag() == Tag::kText && v.payload() < static_cast<std::uint64_t>(Word::kCount)
             ? static_cast<Word>(v.payload())
             : Word::kEmpty;
}
std::string_view name_of(Word w) {
  return kWords[static_cast<std::size_t>(w)];
}

EventKind kind_of_action(Word action) {
  switch (action) {
    case Word::kAlloc:
      return EventKind::kAlloc;
    case Word::kFreeRequested:
      return EventKind::kFreeRequested;
    case Word::kFreeCompleted:
      return EventKind::kFreeCompleted;
    case Word::kSegmentAlloc:
      return EventKind::kSegmentAlloc;
    case Word::kSegmentFree:
      return EventKind::kSegmentFree;
    case Word::kSegmentMap:
      return EventKind::kSegmentMap;
    case Word::kSegmentUnmap:
      return EventKind::kSegmentUnmap;
    case Word::kSnapshot:
      return EventKind::kSnapshot;
    case Word::kOom:
      return EventKind::kOom;
    case Word::kAnnotate:
      return EventKind::kMark;
    default:
      return kUnknownAction;
  }
}

}  // namespace

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
      return format("\"{}\"{}", text.substr(0, 40), text.size() > 40 ? "..." : "");
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

bool Store::unsigned_of(std::string_view record, Word key, Value v, std::uint64_t& out) {
  if (!is_integer(v) || (v.tag() != Tag::kBig && static_cast<std::int64_t>(bits(v)) < 0))
    return wrong(record, key, v);
  out = bits(v);
  return true;
}

bool Store::device_of(std::string_view record, Value v, std::uint16_t& out) {
  if (!is_integer(v)) return wrong(record, Word::kDevice, v);
  const auto n = static_cast<std::int64_t>(bits(v));
  if (v.tag() == Tag::kBig || n < -1 || n > 0xFFFE) return wrong(record, Word::kDevice, v);
  out = static_cast<std::uint16_t>(n < 0 ? 0 : n);
  return true;
}

bool Store::stack_of(std::string_view record, Value v, std::uint32_t& out) {
  if (v.tag() == Tag::kStack) {
    out = static_cast<std::uint32_t>(v.payload());
    return true;
  }
  if (v.tag() == Tag::kNone || (v.tag() == Tag::kList && list(v).count == 0)) return true;
  return wrong(record, Word::kFrames, v);
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

bool Store::word_of(std::string_view record, Word key, Value v, Word& out) {
  if (v.tag() != Tag::kText) return wrong(record, key, v);
  out = word(v);
  return true;
}

Tag Store::kind_of(std::span<const Value> pairs) {
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    switch (word(pairs[i])) {
      case Word::kAction:
        return Tag::kEvent;
      case Word::kTotalSize:
        return Tag::kSegment;
      case Word::kState:
        return Tag::kBlock;
      case Word::kFilename:
        return Tag::kFrame;
      case Word::kStage:
        return Tag::kAnnotation;
      case Word::kRealSize:
        return Tag::kHistory;
      default:
        break;
    }
  }
  return Tag::kDict;
}

bool Store::convert(Tag kind, std::span<const Value> pairs, Value& out) {
  switch (kind) {
    case Tag::kEvent:
      return make_event(pairs, out);
    case Tag::kBlock:
      return make_block(pairs, out);
    case Tag::kSegment:
      return make_segment(pairs, out);
    case Tag::kFrame:
      return make_frame(pairs, out);
    case Tag::kAnnotation:
      return make_annotation(pairs, out);
    default:
      return make_history(pairs, out);
  }
}

bool Store::make_event(std::span<const Value> pairs, Value& out) {
  Event e;
  Value action;
  Value metadata;
  bool has_address = false;
  bool has_size = false;
  std::uint64_t device_free = 0;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const Value v = pairs[i + 1];
    switch (word(pairs[i])) {
      case Word::kAction:
        if (v.tag() != Tag::kText) return wrong("trace entry", Word::kAction, v);
        action = v;
        break;
      case Word::kAddr:
        if (!is_integer(v)) return wrong("trace entry", Word::kAddr, v);
        e.address = bits(v);
        has_address = true;
        break;
      case Word::kSize:
        if (!unsigned_of("trace entry", Word::kSize, v, e.size)) return false;
        has_size = true;
        break;
      case Word::kStream:
        if (!is_integer(v)) return wrong("trace entry", Word::kStream, v);
        e.stream = bits(v);
        break;
      case Word::kTimeUs:
        if (!unsigned_of("trace entry", Word::kTimeUs, v, e.time_ns)) return false;
        break;
      case Word::kFrames:
        if (!stack_of("trace entry", v, e.name)) return false;
        break;
      case Word::kPoolId:
        if (!pool_of("trace entry", Word::kPoolId, v, e.pool)) return false;
        break;
      case Word::kDeviceFree:
        if (!unsigned_of("trace entry", Word::kDeviceFree, v, device_free)) return false;
        break;
      case Word::kUserMetadata:
        metadata = v;
        break;
      default:
        break;
    }
  }
  e.kind = kind_of_action(word(action));
  if (e.kind == EventKind::kOom) {
    e.address = device_free;
  } else if (e.kind == EventKind::kMark) {
    e.name = metadata.tag() == Tag::kText ? static_cast<std::uint32_t>(metadata.payload()) : 0;
  } else if (e.kind == kUnknownAction) {
    count_unknown_action(static_cast<std::uint32_t>(action.payload()));
  } else if (e.kind != EventKind::kSnapshot && !(has_address && has_size)) {
    return fail(format("has a trace entry \"{}\" without \"{}\"", name_of(word(action)),
                       has_address ? "size" : "addr"));
  }
  out = {Tag::kEvent, events.size()};
  events.push(e);
  return true;
}

void Store::count_unknown_action(std::uint32_t name) {
  const auto known = std::find_if(unknown_actions.begin(), unknown_actions.end(),
                                  [&](const auto& a) { return a.first == name; });
  if (known != unknown_actions.end()) {
    ++known->second;
  } else if (unknown_actions.size() < 16) {
    unknown_actions.emplace_back(name, 1);
  }
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
        // Before requested_size and frames were fields: the newest use comes first.
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

bool Store::make_frame(std::span<const Value> pairs, Value& out) {
  Frame f;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const Value v = pairs[i + 1];
    const auto text = v.tag() == Tag::kText ? static_cast<std::uint32_t>(v.payload()) : 0;
    switch (word(pairs[i])) {
      case Word::kName:
        f.function = text;
        break;
      case Word::kFilename:
        f.file = text;
        break;
      case Word::kLine:
        // Frames of C++ code without debug information have none.
        if (is_integer(v)) f.line = static_cast<std::uint32_t>(bits(v));
        break;
      default:
        break;
    }
  }
  const std::array<std::uint32_t, 3> key{f.function, f.file, f.line};
  const std::uint32_t id = frame_set_.find_or_add(
      hash_(key.data(), sizeof key), [&](std::uint32_t known) { return stacks.frame(known) == f; },
      [&] { return stacks.add_frame(f); });
  out = {Tag::kFrame, id};
  return true;
}

bool Store::make_annotation(std::span<const Value> pairs, Value& out) {
  Annotation a;
  bool has_time = false;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const Value v = pairs[i + 1];
    switch (word(pairs[i])) {
      case Word::kStage: {
        Word stage{};
        if (!word_of("annotation", Word::kStage, v, stage)) return false;
        if (stage != Word::kStart && stage != Word::kEnd)
          return wrong("annotation", Word::kStage, v);
        a.begins = stage == Word::kStart;
        break;
      }
      case Word::kName:
        if (v.tag() != Tag::kText) return wrong("annotation", Word::kName, v);
        a.name = static_cast<std::uint32_t>(v.payload());
        break;
      case Word::kDevice:
        if (!device_of("annotation", v, a.device)) return false;
        break;
      case Word::kTimeUs:
        if (!unsigned_of("annotation", Word::kTimeUs, v, a.time_us)) return false;
        has_time = true;
        break;
      default:
        break;
    }
  }
  if (!has_time) return fail("has an annotation without \"time_us\"");
  out = {Tag::kAnnotation, annotations.size()};
  annotations.push_back(a);
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
