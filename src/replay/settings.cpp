// The settings and the allocator policy of a recording.
#include <algorithm>

#include "base/format.h"
#include "replay/workload.h"

namespace neap::replay {

cache::PolicyVersion recorded_version(const trace::Recording& recording,
                                      std::vector<std::string>* notes) {
  // Snapshots have no version. PyTorch records its settings from 2.3 on, and this one since autumn
  // 2025.
  constexpr std::string_view kLateKey = "\"graph_capture_record_stream_reuse\"";
  const trace::RecordedSettings& said = recording.settings;
  if (recording.source != trace::Source::kTorchSnapshot) return {};
  if (said.present && (said.json.empty() || said.json.find(kLateKey) != std::string::npos))
    return {};
  if (notes != nullptr)
    notes->emplace_back(
        "The file lacks what PyTorch 2.11 records: settings that came with it are not advised.");
  return cache::PolicyVersion::for_version(said.present ? "2.3" : "2.2");
}

cache::Settings recorded_settings(const trace::Recording& recording,
                                  std::vector<std::string>* notes) {
  const trace::RecordedSettings& said = recording.settings;
  cache::Settings settings;
  if (!said.present) {
    for (const auto& device : recording.devices)
      for (const auto& segment : device.segments)
        if (segment.expandable) settings.expandable_segments = true;
    for (const auto& device : recording.devices)
      for (const auto& event : device.events)
        if (event.kind == trace::EventKind::kSegmentMap) settings.expandable_segments = true;
    if (notes != nullptr && recording.source == trace::Source::kTorchSnapshot)
      notes->push_back(
          format("The file does not hold its allocator settings: defaults{} are taken.",
                 settings.expandable_segments ? " with expandable segments" : ""));
    return settings;
  }
  auto parsed = cache::Settings::parse(said.conf);
  if (parsed.ok()) {
    settings = *parsed;
  } else if (notes != nullptr) {
    notes->push_back(
        format("The recorded settings text is not readable ({}); the single values are taken.",
               parsed.status().message()));
  }
  // The single values were in effect. The text may have been replaced at run time.
  settings.max_split_size = said.max_split_size < 0
                                ? cache::kUnlimited
                                : Bytes(static_cast<std::uint64_t>(said.max_split_size));
  settings.garbage_collection_threshold = said.garbage_collection_threshold;
  settings.expandable_segments = said.expandable_segments;
  settings.roundup_power2_divisions = said.roundup_power2_divisions;
  return settings;
}

}  // namespace neap::replay
