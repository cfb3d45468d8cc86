#include "hook/stats_text.h"

#include <unistd.h>

#include "base/format.h"
#include "base/json.h"
#include "hook/outside.h"
#include "hook/runtime.h"

namespace neap::hook {
namespace {

constexpr int kSchema = 1;

double gigabytes_per_second(Bytes copied, double seconds) {
  return seconds > 0 ? static_cast<double>(copied.count()) / seconds / 1e9 : 0;
}

Json tag_json(const arena::TagStats& tag) {
  return {{"tag", tag.tag},
          {"regions", tag.regions},
          {"virtual", tag.virtual_bytes.count()},
          {"mapped", tag.mapped.count()},
          {"host", tag.host.count()},
          {"disk", tag.disk.count()},
          {"pauses", tag.pauses},
          {"resumes", tag.resumes},
          {"failures", tag.failures},
          {"copied_to_host", tag.copied_to_host.count()},
          {"copied_to_device", tag.copied_to_device.count()},
          {"pause_seconds", tag.pause_seconds},
          {"resume_seconds", tag.resume_seconds},
          {"last_pause_seconds", tag.last_pause_seconds},
          {"last_resume_seconds", tag.last_resume_seconds},
          {"pause_gb_per_second", gigabytes_per_second(tag.copied_to_host, tag.pause_seconds)},
          {"resume_gb_per_second", gigabytes_per_second(tag.copied_to_device, tag.resume_seconds)}};
}

/// Escapes a label value for Prometheus.
std::string label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

class Metrics {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    text_ += format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
    name_ = name;
  }
  void sample(std::string_view labels, std::uint64_t value) {
    text_ += format("{}{{{}}} {}\n", name_, labels, value);
  }
  void sample(std::string_view labels, double value) {
    text_ += format("{}{{{}}} {:.9g}\n", name_, labels, value);
  }
  void plain(std::uint64_t value) { text_ += format("{} {}\n", name_, value); }
  [[nodiscard]] std::string take() && { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
};

struct DeviceStats {
  std::string label;
  arena::Stats stats;
};

}  // namespace

std::string stats_json(StatsDetail detail) {
  Json devices = Json::array();
  for (const OpenDevice& on : Runtime::get().devices()) {
    const arena::Stats stats = on.arena->stats();
    Json device = {{"ordinal", on.ordinal},
                   {"name", on.device->info().name},
                   {"capacity", on.device->info().capacity.count()}};
    if (detail == StatsDetail::kFull) {
      if (auto memory = on.device->memory(); memory.ok()) {
        device["free"] = memory->free.count();
        device["total"] = memory->total.count();
      }
    }
    device["page_store"] = stats.page_store.count();
    device["physical"] = stats.physical.count();
    device["peak_physical"] = stats.peak_physical.count();
    device["host_buffers"] = stats.host_buffers.count();
    device["driver_creates"] = stats.driver_creates;
    device["driver_releases"] = stats.driver_releases;
    device["store_hits"] = stats.store_hits;
    Json tags = Json::array();
    for (const auto& tag : stats.tags) tags.push_back(tag_json(tag));
    device["tags"] = std::move(tags);
    devices.push_back(std::move(device));
  }
  const OutsideStats outside = Outside::get().stats();
  const Json whole = {{"schema", kSchema},
                      {"pid", ::getpid()},
                      {"devices", std::move(devices)},
                      {"outside",
                       {{"calls", outside.calls},
                        {"failures", outside.failures},
                        {"blocks", outside.blocks},
                        {"bytes", outside.bytes.count()},
                        {"peak_bytes", outside.peak.count()}}}};
  return json_text(whole);
}

std::string stats_prometheus() {
  std::vector<DeviceStats> devices;
  for (const OpenDevice& on : Runtime::get().devices()) {
    devices.push_back({format("device=\"{}\"", on.ordinal), on.arena->stats()});
  }
  Metrics metrics;
  const auto for_each_tag = [&](auto&& write) {
    for (const DeviceStats& device : devices) {
      for (const arena::TagStats& tag : device.stats.tags) {
        write(format("{},tag=\"{}\"", device.label, label(tag.tag)), tag);
      }
    }
  };
  const auto for_each_device = [&](auto&& write) {
    for (const DeviceStats& device : devices) write(device.label, device.stats);
  };

  metrics.family("neap_tag_bytes", "gauge", "Bytes of a tag's regions by where they are.");
  for_each_tag([&](const std::string& of, const arena::TagStats& tag) {
    metrics.sample(of + ",place=\"virtual\"", tag.virtual_bytes.count());
    metrics.sample(of + ",place=\"mapped\"", tag.mapped.count());
    metrics.sample(of + ",place=\"host\"", tag.host.count());
    metrics.sample(of + ",place=\"disk\"", tag.disk.count());
  });
  metrics.family("neap_tag_regions", "gauge", "Regions of a tag.");
  for_each_tag(
      [&](const std::string& of, const arena::TagStats& tag) { metrics.sample(of, tag.regions); });
  metrics.family("neap_tag_moves_total", "counter", "Pauses, resumes and failed ones of a tag.");
  for_each_tag([&](const std::string& of, const arena::TagStats& tag) {
    metrics.sample(of + ",move=\"pause\"", tag.pauses);
    metrics.sample(of + ",move=\"resume\"", tag.resumes);
    metrics.sample(of + ",move=\"failed\"", tag.failures);
  });
  metrics.family("neap_tag_move_seconds_total", "counter", "Time spent moving a tag.");
  for_each_tag([&](const std::string& of, const arena::TagStats& tag) {
    metrics.sample(of + ",move=\"pause\"", tag.pause_seconds);
    metrics.sample(of + ",move=\"resume\"", tag.resume_seconds);
  });
  metrics.family("neap_tag_copied_bytes_total", "counter", "Bytes copied for a tag's backups.");
  for_each_tag([&](const std::string& of, const arena::TagStats& tag) {
    metrics.sample(of + ",to=\"host\"", tag.copied_to_host.count());
    metrics.sample(of + ",to=\"device\"", tag.copied_to_device.count());
  });
  metrics.family("neap_device_bytes", "gauge", "Bytes that Neap holds on and for a device.");
  for_each_device([&](const std::string& of, const arena::Stats& stats) {
    metrics.sample(of + ",kind=\"physical\"", stats.physical.count());
    metrics.sample(of + ",kind=\"peak_physical\"", stats.peak_physical.count());
    metrics.sample(of + ",kind=\"page_store\"", stats.page_store.count());
    metrics.sample(of + ",kind=\"host_buffers\"", stats.host_buffers.count());
  });
  metrics.family("neap_device_pages_total", "counter", "Pages by how they were got or given up.");
  for_each_device([&](const std::string& of, const arena::Stats& stats) {
    metrics.sample(of + ",how=\"created\"", stats.driver_creates);
    metrics.sample(of + ",how=\"released\"", stats.driver_releases);
    metrics.sample(of + ",how=\"from_store\"", stats.store_hits);
  });
  const OutsideStats outside = Outside::get().stats();
  metrics.family("neap_outside_bytes", "gauge", "Bytes of live allocations outside every scope.");
  metrics.plain(outside.bytes.count());
  metrics.family("neap_outside_calls_total", "counter", "Calls passed on to the CUDA runtime.");
  metrics.plain(outside.calls);
  return std::move(metrics).take();
}

}  // namespace neap::hook
