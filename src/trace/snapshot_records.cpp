// Converts dicts of a snapshot's trace into records: events, frames, annotations.
// snapshot_state.cpp has the rest.
#include <algorithm>

#include "base/format.h"
#include "trace/snapshot_fields.h"

namespace neap::trace::snapshot {
namespace {

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
        // Frames of C++ code without debug information have no line.
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

}  // namespace neap::trace::snapshot
