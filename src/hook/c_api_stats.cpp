// neap.h: statistics and traces.
#include "hook/c_struct.h"
#include "hook/error.h"
#include "hook/outside.h"
#include "hook/session.h"
#include "hook/stats_text.h"
#include "neap/neap.h"

using neap::Status;
using namespace neap::hook;  // NOLINT(google-build-using-namespace)

namespace {

Status write_text(const std::string& text, char* out, size_t capacity, size_t* length) {
  NEAP_TRY(require(length != nullptr, "length is null"));
  NEAP_TRY(require(out != nullptr || capacity == 0, "text is null"));
  if (capacity > 0) {
    const size_t fits = std::min(text.size(), capacity - 1);
    std::memcpy(out, text.data(), fits);
    out[fits] = '\0';
  }
  *length = text.size();
  return {};
}

/// Records the regions that exist when the trace starts.
void describe_regions() {
  for (const OpenDevice& on : Runtime::get().devices()) {
    for (const auto& region : on.arena->regions()) {
      neap::trace::Event event;
      event.kind = neap::trace::EventKind::kRegionCreate;
      event.address = region.address;
      event.size = region.size.count();
      event.name = Session::get().intern(region.tag);
      event.device = static_cast<std::uint16_t>(on.ordinal);
      Session::get().record(event);
    }
  }
}

}  // namespace

extern "C" {

neap_status neap_stats(neap_totals* totals) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(totals != nullptr, "totals is null"));
    NEAP_TRY(check_struct(totals, "neap_totals"));
    neap_totals sum{};
    for (const OpenDevice& on : Runtime::get().devices()) {
      const auto stats = on.arena->stats();
      for (const auto& tag : stats.tags) {
        sum.regions += tag.regions;
        sum.virtual_bytes += tag.virtual_bytes.count();
        sum.mapped_bytes += tag.mapped.count();
        sum.host_bytes += tag.host.count();
        sum.disk_bytes += tag.disk.count();
        sum.pauses += tag.pauses;
        sum.resumes += tag.resumes;
        sum.failures += tag.failures;
        sum.copied_to_host += tag.copied_to_host.count();
        sum.copied_to_device += tag.copied_to_device.count();
        sum.pause_seconds += tag.pause_seconds;
        sum.resume_seconds += tag.resume_seconds;
      }
      sum.page_store_bytes += stats.page_store.count();
      sum.physical_bytes += stats.physical.count();
      sum.peak_physical_bytes += stats.peak_physical.count();
      sum.host_buffer_bytes += stats.host_buffers.count();
      sum.driver_creates += stats.driver_creates;
      sum.driver_releases += stats.driver_releases;
      sum.store_hits += stats.store_hits;
    }
    const OutsideStats outside = Outside::get().stats();
    sum.outside_calls = outside.calls;
    sum.outside_failures = outside.failures;
    sum.outside_blocks = outside.blocks;
    sum.outside_bytes = outside.bytes.count();
    sum.outside_peak_bytes = outside.peak.count();
    write_struct(totals, sum);
    return {};
  });
}

neap_status neap_stats_json(char* text, size_t capacity, size_t* length) {
  return guarded(
      [&] { return write_text(stats_json(StatsDetail::kFull), text, capacity, length); });
}
neap_status neap_stats_prometheus(char* text, size_t capacity, size_t* length) {
  return guarded([&] { return write_text(stats_prometheus(), text, capacity, length); });
}

neap_status neap_trace_start(const char* path) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(path != nullptr && *path != '\0', "A trace needs a path"));
    NEAP_TRY(Runtime::get().usable());
    NEAP_TRY(Session::get().start(path, {}));
    describe_regions();
    return {};
  });
}
neap_status neap_trace_stop(void) {
  return guarded([] { return Session::get().stop(); });
}

static Status mark(neap::trace::EventKind kind, const char* name) {
  NEAP_TRY(require(name != nullptr, "name is null"));
  Session::get().mark(kind, name);
  return {};
}
neap_status neap_phase_begin(const char* name) {
  return guarded([&] { return mark(neap::trace::EventKind::kPhaseBegin, name); });
}
neap_status neap_phase_end(const char* name) {
  return guarded([&] { return mark(neap::trace::EventKind::kPhaseEnd, name); });
}
neap_status neap_mark(const char* text) {
  return guarded([&] { return mark(neap::trace::EventKind::kMark, text); });
}

}  // extern "C"
