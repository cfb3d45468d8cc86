// Converts the records of a snapshot to a Recording: devices, times, phase marks, names.
#include <algorithm>
#include <map>

#include "base/format.h"
#include "base/text.h"
#include "trace/formats.h"
#include "trace/snapshot_machine.h"
#include "trace/snapshot_settings.h"

namespace neap::trace {
namespace {

using namespace snapshot;

class Assembly {
 public:
  Assembly(const Input& input, Store& store) : input_(input), store_(store) {
    out_.source = Source::kTorchSnapshot;
  }

  Result<Recording> run(Value top);

 private:
  [[nodiscard]] Status corrupt(const std::string& what) const {
    return {ErrorCode::kCorrupt, "Snapshot " + input_.name() + " cannot be read: " + what};
  }

  [[nodiscard]] Value member(Value dict, Word key) const;
  /// Reads a list of records of one kind. None or a missing value is an empty list.
  Status records(Value v, Tag kind, std::string_view what, List& list) const;
  Status take_segments(Value v);
  Status take_traces(Value v);
  Event& event(const List& list, std::uint64_t i) {
    return store_.events[static_cast<std::size_t>(store_.item(list, i).payload())];
  }

  void copy_events(const List& list, DeviceRecording& d);
  [[nodiscard]] std::uint64_t since_start(std::uint64_t time_us) const;
  Status take_annotations(Value v);
  /// Begins go before the events of the same microsecond, ends after them. Marks keep their order.
  static void merge(std::vector<Event>& marks, std::vector<Event>& events);
  std::uint32_t name(std::uint32_t text_id);
  void take_names();
  Status take_settings(Value v);

  const Input& input_;
  Store& store_;
  Recording out_;
  std::map<std::uint16_t, DeviceRecording> devices_;
  std::vector<std::uint32_t> names_;  // from text id to name id
  std::uint64_t start_us_ = 0;
  bool in_order_ = true;
};

Result<Recording> Assembly::run(Value top) {
  Value segments;
  Value traces;
  Value settings;
  Value annotations;
  if (top.tag() == Tag::kDict) {
    segments = member(top, Word::kSegments);
    traces = member(top, Word::kDeviceTraces);
    settings = member(top, Word::kAllocatorSettings);
    annotations = member(top, Word::kExternalAnnotations);
  } else if (top.tag() == Tag::kList) {
    segments = top;  // torch.cuda.memory_snapshot(), and files of old versions
  }
  if (segments.tag() == Tag::kUnset && traces.tag() == Tag::kUnset) {
    return Status(ErrorCode::kUnsupported,
                  input_.name() +
                      " is a pickle but not a memory snapshot: it has neither "
                      "\"segments\" nor \"device_traces\"");
  }
  NEAP_TRY(take_segments(segments));
  NEAP_TRY(take_traces(traces));
  NEAP_TRY(take_annotations(annotations));
  NEAP_TRY(take_settings(settings));
  take_names();
  out_.pools = store_.used_pools;
  if (store_.too_many_pools)
    out_.warnings.emplace_back(
        "More than 254 private pools: the later ones share one index and cannot be told apart.");
  for (const auto& [action, count] : store_.unknown_actions)
    out_.warnings.push_back(
        format("{} trace entries with the unknown action \"{}\" were left "
               "out.",
               count, excerpt(store_.texts.text(action), 60)));
  for (auto& [ordinal, device] : devices_) {
    device.ordinal = ordinal;
    for (Event& e : device.events) e.device = ordinal;
    if (!device.events.empty() || !device.segments.empty())
      out_.devices.push_back(std::move(device));
  }
  return std::move(out_);
}

Value Assembly::member(Value dict, Word key) const {
  const Dict& d = store_.dict(dict);
  Value found;
  for (std::uint64_t i = 0; i < d.count; ++i) {
    const Value k = store_.key(d, i);
    if (k.tag() == Tag::kText && k.payload() == static_cast<std::uint64_t>(key))
      found = store_.value(d, i);
  }
  return found;
}

Status Assembly::records(Value v, Tag kind, std::string_view what, List& list) const {
  list = {};
  if (v.tag() == Tag::kUnset || v.tag() == Tag::kNone) return {};
  if (v.tag() != Tag::kList) return corrupt(format("\"{}\" is not a list", what));
  list = store_.list(v);
  for (std::uint64_t i = 0; list.kind == Tag::kNone && i < list.count; ++i) {
    if (store_.item(list, i).tag() != kind)
      return corrupt(format("entry {} of \"{}\" is of another kind", i, what));
  }
  if (list.count > 0 && list.kind != Tag::kNone && list.kind != kind)
    return corrupt(format("the entries of \"{}\" are of another kind", what));
  return {};
}

Status Assembly::take_segments(Value v) {
  List list;
  NEAP_TRY(records(v, Tag::kSegment, "segments", list));
  // Reject shared lists: a snapshot has none, and copies would multiply.
  if (list.count > store_.segments.size()) return corrupt("it lists segments several times");
  std::vector<std::uint32_t> order;
  order.reserve(static_cast<std::size_t>(list.count));
  for (std::uint64_t i = 0; i < list.count; ++i)
    order.push_back(static_cast<std::uint32_t>(store_.item(list, i).payload()));
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return store_.segments[a].segment.address < store_.segments[b].segment.address;
  });
  std::uint64_t taken = 0;
  for (const std::uint32_t i : order) {
    const SegmentRecord& r = store_.segments[i];
    DeviceRecording& d = devices_[r.device];
    Segment s = r.segment;
    List blocks;
    NEAP_TRY(records(r.blocks, Tag::kBlock, "blocks", blocks));
    s.first_block = static_cast<std::uint32_t>(d.blocks.size());
    s.block_count = static_cast<std::uint32_t>(blocks.count);
    // Reject shared lists: a snapshot has none, and copies would multiply.
    if ((taken += blocks.count) > store_.blocks.size() || order.size() > store_.segments.size())
      return corrupt("several segments share one list of blocks");
    std::uint64_t next = s.address;
    for (std::uint64_t j = 0; j < blocks.count; ++j) {
      Block b = store_.blocks[static_cast<std::size_t>(store_.item(blocks, j).payload())];
      if (b.address == kNoAddress) b.address = next;
      next = b.address + b.size;
      d.blocks.push_back(b);
    }
    d.segments.push_back(s);
  }
  store_.blocks = {};
  return {};
}

Status Assembly::take_traces(Value v) {
  if (v.tag() == Tag::kUnset || v.tag() == Tag::kNone) return {};
  if (v.tag() != Tag::kList) return corrupt("\"device_traces\" is not a list");
  const List traces = store_.list(v);
  if (traces.count > 0xFFFF) return corrupt("it has more than 65535 devices");
  std::uint64_t taken = 0;
  std::uint64_t end_of_last = 0;
  std::vector<List> lists;
  for (std::uint64_t i = 0; i < traces.count; ++i) {
    const Value item = store_.item(traces, i);
    List list;
    NEAP_TRY(records(item, Tag::kEvent, "device_traces", list));
    if ((taken += list.count) > store_.events.size())
      return corrupt("several devices share one list of trace entries");
    // Pieces may be freed during the copy only if the runs are consecutive.
    if (list.count > 0) {
      in_order_ = in_order_ && list.kind == Tag::kEvent && list.first >= end_of_last;
      end_of_last = list.first + list.count;
    }
    lists.push_back(list);
  }
  std::uint64_t earliest = ~std::uint64_t{0};
  for (const List& list : lists) {
    for (std::uint64_t i = 0; i < list.count; ++i) {
      const std::uint64_t t = event(list, i).time_ns;
      if (t != 0) earliest = std::min(earliest, t);
    }
  }
  for (const Annotation& a : store_.annotations)
    if (a.time_us != 0) earliest = std::min(earliest, a.time_us);
  start_us_ = earliest == ~std::uint64_t{0} ? 0 : earliest;
  out_.start_unix_ns = start_us_ <= UINT64_MAX / 1000 ? start_us_ * 1000 : 0;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (lists[i].count == 0) continue;
    copy_events(lists[i], devices_[static_cast<std::uint16_t>(i)]);
  }
  return {};
}

void Assembly::copy_events(const List& list, DeviceRecording& d) {
  d.events.reserve(static_cast<std::size_t>(list.count));
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < list.count; ++i) {
    Event e = event(list, i);
    if (in_order_ && i % EventPool::kPiece == 0)
      store_.events.forget_before(static_cast<std::size_t>(list.first + i));
    if (e.time_ns != 0) {
      d.has_times = true;
      last = since_start(e.time_ns);
    }
    if (e.kind == kUnknownAction) continue;
    e.time_ns = last;
    d.events.push_back(e);
  }
  if (d.has_times) return;
  for (std::size_t i = 0; i < d.events.size(); ++i) d.events[i].time_ns = i;
}

std::uint64_t Assembly::since_start(std::uint64_t time_us) const {
  const std::uint64_t us = time_us - start_us_;
  return us <= UINT64_MAX / 1000 ? us * 1000 : UINT64_MAX;
}

Status Assembly::take_annotations(Value v) {
  List list;
  NEAP_TRY(records(v, Tag::kAnnotation, "external_annotations", list));
  if (list.count > store_.annotations.size()) return corrupt("annotations are shared");
  std::map<std::uint16_t, std::vector<Event>> marks;
  for (std::uint64_t i = 0; i < list.count; ++i) {
    const Annotation& a =
        store_.annotations[static_cast<std::size_t>(store_.item(list, i).payload())];
    std::uint16_t device = a.device;
    if (!devices_.contains(device) && devices_.size() == 1) device = devices_.begin()->first;
    marks[device].push_back({.time_ns = since_start(a.time_us),
                             .name = name(a.name),
                             .kind = a.begins ? EventKind::kPhaseBegin : EventKind::kPhaseEnd});
  }
  for (auto& [ordinal, list_of_marks] : marks) {
    DeviceRecording& d = devices_[ordinal];
    if (!d.has_times && !d.events.empty()) {
      out_.warnings.push_back(
          format("Device {} has annotations but its trace entries have no "
                 "times: the phases were left out.",
                 ordinal));
      continue;
    }
    d.has_times = true;
    merge(list_of_marks, d.events);
  }
  return {};
}

void Assembly::merge(std::vector<Event>& marks, std::vector<Event>& events) {
  std::stable_sort(marks.begin(), marks.end(),
                   [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  std::vector<std::size_t> in_front_of(marks.size());
  std::size_t at = 0;
  for (std::size_t m = 0; m < marks.size(); ++m) {
    const bool ends = marks[m].kind == EventKind::kPhaseEnd;
    while (at < events.size() && (events[at].time_ns < marks[m].time_ns ||
                                  (ends && events[at].time_ns == marks[m].time_ns)))
      ++at;
    in_front_of[m] = at;
  }
  // Merge in place, from the end.
  std::size_t from = events.size();
  events.resize(events.size() + marks.size());
  std::size_t to = events.size();
  for (std::size_t m = marks.size(); m-- > 0;) {
    while (from > in_front_of[m]) events[--to] = events[--from];
    events[--to] = marks[m];
  }
}

std::uint32_t Assembly::name(std::uint32_t text_id) {
  if (names_.size() <= text_id) names_.resize(store_.texts.size(), 0);
  if (text_id != 0 && names_[text_id] == 0)
    names_[text_id] = out_.names.intern(store_.texts.text(text_id));
  return names_[text_id];
}

void Assembly::take_names() {
  store_.stacks.for_each_frame([&](Frame& f) {
    f.function = name(f.function);
    f.file = name(f.file);
  });
  out_.stacks = std::move(store_.stacks);
  for (auto& [ordinal, device] : devices_) {
    for (Event& e : device.events)
      if (e.kind == EventKind::kMark) e.name = name(e.name);
  }
}

Status Assembly::take_settings(Value v) {
  if (v.tag() != Tag::kDict) return {};
  SettingsReader reader(store_);
  if (!reader.read(v, out_.settings))
    return corrupt("\"allocator_settings\" has more than 1000 keys");
  for (auto& [ordinal, device] : devices_)
    if (reader.overflowed(ordinal)) device.overflowed = true;
  return {};
}

}  // namespace

Result<Recording> read_torch_snapshot(Input& input, const ReadContext& context) {
  Store store;
  Value top;
  {
    Machine machine(input, store, context);
    NEAP_TRY_ASSIGN(top, machine.run());
  }
  return Assembly(input, store).run(top);
}

}  // namespace neap::trace
