#include "report/report.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::report {

std::string duration_text(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 1 || size == 0) return format("{:.4g} s", seconds);
  if (size >= 1e-3) return format("{:.4g} ms", seconds * 1e3);
  return format("{:.4g} us", seconds * 1e6);
}

void Report::add_peaks(std::vector<Figure>& out) const {
  const History& h = history;
  const std::string reserved = to_string(Bytes(h.peak_reserved));
  if (!lines) {
    out.push_back({"peak reserved", reserved, "held from the driver"});
  } else if (Bytes(h.peak_reserved) != lines->measured_peak) {
    // The measured peak was in a phase that the trace lacks, or the trace does not count pages.
    out.push_back({h.physical ? "peak in the trace" : "peak of addresses", reserved,
                   h.physical ? "the trace is a part of the run"
                              : "of allocator and tags; not all hold memory"});
  }
  out.push_back({"peak allocated", to_string(Bytes(h.peak_total)),
                 is_run ? "tags and live tensors; the rest is free for reuse" : "live tensors"});
}

std::vector<Report::Figure> Report::headline() const {
  const History& h = history;
  const auto bytes = [](std::uint64_t count) { return to_string(Bytes(count)); };
  std::vector<Figure> items;
  if (lines) {
    items.push_back({"no offloading", to_string(lines->all_resident), "all tags on the device"});
    items.push_back({"ceiling", lines->ceiling.is_zero() ? "none" : to_string(lines->ceiling), ""});
    items.push_back({"measured peak", to_string(lines->measured_peak), "held from the device"});
    items.push_back({"planned peak", to_string(lines->planned_peak), ""});
  }
  if (h.events == 0) return items;
  add_peaks(items);
  if (!h.driver_allocations.empty() && !h.physical) {
    items.push_back({"reserved w/o fragmentation", bytes(h.peak_without_fragmentation), ""});
    const double over =
        100 * static_cast<double>(h.fragmentation_overhead()) /
        static_cast<double>(std::max<std::uint64_t>(1, h.peak_without_fragmentation));
    items.push_back({"fragmentation overhead",
                     format("{} ({:.1f} %)", bytes(h.fragmentation_overhead()), over), ""});
  }
  items.push_back({"driver allocations", std::to_string(h.driver_allocs), ""});
  if (h.copied > 0) items.push_back({"moved over the link", bytes(h.copied), ""});
  return items;
}

std::string Report::to_text() const {
  std::string out = title + "\n" + subtitle + "\n\n";
  std::vector<std::vector<std::string>> cells;
  for (const Figure& figure : headline()) cells.push_back({figure.name, figure.value});
  std::size_t width = 0;
  for (const auto& line : cells) width = std::max(width, line[0].size());
  for (const auto& line : cells) out += format("{:<{}}  {}\n", line[0], width, line[1]);
  if (!table.rows.empty()) out += "\n" + table.to_text();
  if (!moves.rows.empty()) out += "\n" + moves.to_text();
  if (!settings.empty()) out += "\n" + settings_text(settings);
  for (const std::string& note : notes) out += "\nnote: " + note;
  if (!notes.empty()) out += "\n";
  return out;
}

Json Report::to_json() const {
  const History& h = history;
  Json out = {{"schema", 1},
              {"input", title},
              {"events", h.events},
              {"seconds", static_cast<double>(h.end_ns) * 1e-9},
              {"peak_reserved", h.peak_reserved},
              {"peak_allocated", h.peak_total},
              {"peak_without_fragmentation", h.peak_without_fragmentation},
              {"fragmentation_at_peak", h.fragmentation_at_peak},
              {"fragmentation_max", h.fragmentation_max},
              {"fragmentation_overhead", h.fragmentation_overhead()},
              {"driver_allocs", h.driver_allocs},
              {"driver_frees", h.driver_frees},
              {"copied", h.copied},
              {"phases", table.to_json()},
              {"moves", moves.to_json()}};
  out["lines"] = lines ? lines->to_json() : Json(nullptr);
  Json layers = Json::array();
  for (const Layer& layer : h.layers) {
    layers.push_back({{"kind", layer.kind == Layer::Kind::kTag ? "tag" : "phase"},
                      {"name", layer.name},
                      {"peak", layer.peak}});
  }
  out["layers"] = std::move(layers);
  Json maps = Json::array();
  for (const SegmentMap& map : h.maps) {
    maps.push_back({{"label", map.label},
                    {"seconds", static_cast<double>(map.time_ns) * 1e-9},
                    {"reserved", map.reserved},
                    {"allocated", map.allocated},
                    {"segments", map.segments.size()},
                    {"largest_gap", map.largest_gap},
                    {"whole_segments_free", map.whole_segments_free}});
  }
  out["maps"] = std::move(maps);
  out["settings"] = Json::array();
  for (const SettingOutcome& setting : settings) out["settings"].push_back(setting.to_json());
  out["notes"] = notes;
  return out;
}

}  // namespace neap::report
