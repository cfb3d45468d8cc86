// Decides which marks of a recording are phases. PyTorch records its own annotations
// ("Optimizer.step#AdamW.step") in the same way as those of the program.
//
// Model     If any mark of the device begins with "phase:", only such marks are phases. Otherwise
//           every mark is one, except PyTorch's own.
//
// Threads   plain data; read-only use from any number of threads.
//
// Cost      one pass over the events; a few comparisons per mark.
#pragma once

#include <string_view>

#include "trace/recording.h"

namespace neap::trace {

class PhaseMarks {
 public:
  /// `recording` outlives this object.
  PhaseMarks(const Recording& recording, const DeviceRecording& device);

  /// Whether `event` begins a phase. Ends need no such check: each ends the phase that began last.
  [[nodiscard]] bool begins_phase(const Event& event) const;

 private:
  const Recording& recording_;
  bool only_prefixed_ = false;
};

/// Label of a phase name: "generate" for "phase:generate".
[[nodiscard]] std::string_view phase_label(std::string_view name);

}  // namespace neap::trace
