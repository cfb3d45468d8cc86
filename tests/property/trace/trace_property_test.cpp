// Whatever a Recording holds, writing and reading it gives it again; whatever bytes a file holds,
// reading it ends with a Recording or one Status.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "trace/reader.h"
#include "trace/recorder.h"
#include "trace/wire_format.h"
#include "trace/writer.h"

namespace neap::trace {
namespace {

std::filesystem::path temp_path() {
  return std::filesystem::path(::testing::TempDir()) /
         ("neap_trace_property_" + std::to_string(::getpid()));
}

template <class T>
T below(T limit) {
  return limit == 0 ? T{0} : *rc::gen::inRange<T>(0, limit);
}
std::uint64_t any_number() {
  // Small, page-like and extreme numbers alike.
  switch (below(4)) {
    case 0:
      return below<std::uint64_t>(100);
    case 1:
      return 0x7F0000000000ULL + 512 * below<std::uint64_t>(1 << 20);
    case 2:
      return ~0ULL - below<std::uint64_t>(3);
    default:
      return *rc::gen::arbitrary<std::uint64_t>();
  }
}

std::string any_text() {
  return *rc::gen::arbitrary<std::string>();
}

/// The number of any of `count` entries.
template <class T>
std::uint32_t any_of(const T& count) {
  return below(static_cast<std::uint32_t>(count));
}

void add_names_and_stacks(Recording& r) {
  const int names = below(30);
  for (int i = 0; i < names; ++i) (void)r.names.intern(any_text() + std::to_string(i));
  const auto name = [&] { return any_of(r.names.size()); };
  const int frames = below(10);
  for (int i = 0; i < frames; ++i)
    (void)r.stacks.add_frame({name(), name(), static_cast<std::uint32_t>(any_number())});
  for (int i = below(10); i > 0; --i) {
    std::vector<std::uint32_t> ids;
    for (int n = frames == 0 ? 0 : below(20); n > 0; --n) ids.push_back(any_of(frames));
    (void)r.stacks.add_stack(ids);
  }
}

RecordedSettings any_settings() {
  RecordedSettings settings;
  settings.present = true;
  settings.conf = any_text();
  settings.max_split_size = static_cast<std::int64_t>(any_number());
  settings.garbage_collection_threshold = 0.1 * below(10);
  settings.expandable_segments = below(2) == 0;
  for (std::uint32_t& d : settings.roundup_power2_divisions) d = below(65U);
  settings.trace_alloc_max_entries = any_number();
  settings.json = any_text();
  return settings;
}

void add_segment(const Recording& r, DeviceRecording& d) {
  Segment s;
  s.address = any_number();
  s.size = any_number();
  s.stream = any_number();
  s.first_block = static_cast<std::uint32_t>(d.blocks.size());
  s.block_count = below(5U);
  s.stack = any_of(r.stacks.size());
  s.pool = static_cast<std::uint8_t>(any_of(r.pools.size()));
  s.small_pool = below(2) == 0;
  s.expandable = below(2) == 0;
  for (std::uint32_t b = 0; b < s.block_count; ++b)
    d.blocks.push_back({any_number(), any_number(), any_number(), any_of(r.stacks.size()),
                        static_cast<BlockState>(below(3))});
  d.segments.push_back(s);
}

Event any_event(const Recording& r, std::uint16_t device) {
  Event e;
  e.time_ns = any_number();
  e.address = any_number();
  e.size = any_number();
  e.stream = any_number();
  e.device = device;
  e.kind = static_cast<EventKind>(below(64));
  e.name = names_a_stack(e.kind) ? any_of(r.stacks.size()) : any_of(r.names.size());
  e.pool = static_cast<std::uint8_t>(any_of(r.pools.size()));
  return e;
}

Recording any_recording() {
  Recording r;
  r.source = below(2) == 0 ? Source::kNeap : Source::kTorchSnapshot;
  r.start_unix_ns = any_number();
  r.dropped_events = below<std::uint64_t>(3);
  add_names_and_stacks(r);
  for (int i = below(5); i > 0; --i) r.pools.emplace_back(any_number(), any_number());
  if (below(2) == 0) r.settings = any_settings();
  for (int i = below(4); i > 0; --i) r.metadata.emplace_back("key" + std::to_string(i), any_text());
  for (int i = below(3); i > 0; --i) r.warnings.push_back(any_text());
  std::uint16_t ordinal = 0;
  for (int i = below(4); i > 0; --i) {
    DeviceRecording d;
    d.ordinal = ordinal;
    ordinal = static_cast<std::uint16_t>(ordinal + 1 + below(3));
    d.has_times = below(2) == 0;
    d.overflowed = below(2) == 0;
    for (int n = below(6); n > 0; --n) add_segment(r, d);
    for (int n = 1 + below(300); n > 0; --n) d.events.push_back(any_event(r, d.ordinal));
    r.devices.push_back(std::move(d));
  }
  return r;
}

RC_GTEST_PROP(TraceProperty, WrittenIsRead, ()) {
  const Recording r = any_recording();
  const auto path = temp_path();
  RC_ASSERT(write(path, r).ok());
  const auto back = read(path);
  std::filesystem::remove(path);
  RC_ASSERT(back.ok());
  RC_ASSERT(back->truncated.empty());
  RC_ASSERT(back->source == r.source);
  RC_ASSERT(back->devices == r.devices);
  RC_ASSERT(back->stacks == r.stacks);
  RC_ASSERT(back->pools == r.pools);
  RC_ASSERT(back->settings == r.settings);
  RC_ASSERT(back->metadata == r.metadata);
  RC_ASSERT(back->warnings == r.warnings);
  RC_ASSERT(back->start_unix_ns == r.start_unix_ns);
  RC_ASSERT(back->dropped_events == r.dropped_events);
  RC_ASSERT(back->names.size() == r.names.size());
  for (std::uint32_t i = 0; i < r.names.size(); ++i)
    RC_ASSERT(back->names.name(i) == r.names.name(i));
}

RC_GTEST_PROP(TraceProperty, RecordedIsRead, ()) {
  // Whatever batches the background thread makes of them, the events come back in order.
  const auto path = temp_path();
  auto recorder = Recorder::open(path, {}, {.ring_events = 1024});
  RC_ASSERT(recorder.ok());
  std::vector<std::pair<std::uint64_t, std::string>> sent;
  for (int n = below(3000); n > 0; --n) {
    if (below(200) == 0) RC_ASSERT((*recorder)->flush().ok());
    const std::string tag = "tag" + std::to_string(below(50));
    sent.emplace_back(any_number(), tag);
    (*recorder)->record(
        {.address = sent.back().first, .name = (*recorder)->intern(tag), .kind = EventKind::kMap});
  }
  RC_ASSERT((*recorder)->close().ok());
  const auto back = read(path);
  std::filesystem::remove(path);
  RC_ASSERT(back.ok());
  RC_ASSERT(back->event_count() == sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const Event& e = back->devices[0].events[i];
    RC_ASSERT(e.address == sent[i].first);
    RC_ASSERT(back->names.name(e.name) == sent[i].second);
  }
}

RC_GTEST_PROP(TraceProperty, DamageEndsInAStatus, ()) {
  static const std::string whole =
      value_or_throw(read_file(NEAP_SOURCE_DIR "/tests/golden/trace/modern.p4.pickle"));
  std::string bad = whole;
  for (int n = 1 + below(8); n > 0; --n) {
    const auto at = 2 + below(bad.size() - 2);
    switch (below(3)) {
      case 0:
        bad[at] = static_cast<char>(below(256));
        break;
      case 1:
        bad.erase(at, 1 + below<std::size_t>(20));
        break;
      default:
        bad.insert(at, bad.substr(below(bad.size()), below<std::size_t>(40)));
        break;
    }
    if (bad.size() < 4) break;
  }
  const auto r = read_bytes({reinterpret_cast<const std::uint8_t*>(bad.data()), bad.size()}, "bad");
  if (!r.ok()) RC_ASSERT(!r.status().message().empty());
  if (r.ok()) {
    for (const DeviceRecording& d : r->devices) {
      for (const Event& e : d.events) {
        RC_ASSERT(e.pool < r->pools.size());
        RC_ASSERT(e.name < (names_a_stack(e.kind) ? r->stacks.size() : r->names.size()));
      }
    }
  }
}

}  // namespace
}  // namespace neap::trace
