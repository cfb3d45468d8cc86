#include "trace/phase_marks.h"

#include <algorithm>

namespace neap::trace {
namespace {

constexpr std::string_view kPrefix = "phase:";

}  // namespace

PhaseMarks::PhaseMarks(const Recording& recording, const DeviceRecording& device)
    : recording_(recording),
      only_prefixed_(
          std::any_of(device.events.begin(), device.events.end(), [&](const Event& event) {
            return event.kind == EventKind::kPhaseBegin &&
                   recording.names.name(event.name).starts_with(kPrefix);
          })) {}

bool PhaseMarks::begins_phase(const Event& event) const {
  if (event.kind != EventKind::kPhaseBegin) return false;
  const std::string_view name = recording_.names.name(event.name);
  if (only_prefixed_) return name.starts_with(kPrefix);
  for (const std::string_view own : {"Optimizer.", "ProfilerStep#", "enumerate(DataLoader)",
                                     "nccl:", "gloo:", "##", "autograd::"})
    if (name.starts_with(own)) return false;
  return !name.ends_with("(dynamo_timed)");  // steps of torch.compile
}

std::string_view phase_label(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

}  // namespace neap::trace
