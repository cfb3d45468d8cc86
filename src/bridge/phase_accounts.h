// Measurements of phases, and whether the memory limit held.
//
// Threads   one at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bridge/phase_transients.h"
#include "bridge/runtime.h"

namespace neap::bridge {

class PhaseAccounts {
 public:
  /// `ceiling` is the user's limit; zero: none. `executor` and `plan` must outlive it.
  PhaseAccounts(Bytes ceiling, const ScheduleExecutor& executor, const plan::MemoryPlan& plan);

  /// The memory that temporaries of the open phase may take in addition to its tags; zero: no
  /// limit.
  [[nodiscard]] Bytes room() const;
  /// Stores the measurement of a phase that has ended. On CUDA libtorch's allocator is limited to
  /// room(), within one segment. The status reports a phase that exceeded the limit.
  [[nodiscard]] Status add(PhaseMeasurement measurement);
  /// Records a request that libtorch's allocator failed in a phase. `after` is the device's memory
  /// without the phase's temporaries, which matters only without a limit.
  void note_oom(const PhaseMeasurement& measurement, Bytes request,
                const device::MemoryInfo& after);

  [[nodiscard]] std::vector<PhaseMeasurement> take() { return std::exchange(measurements_, {}); }
  [[nodiscard]] Bytes peak() const { return peak_; }
  [[nodiscard]] Bytes peak_allocated() const { return peak_allocated_; }
  [[nodiscard]] const Status& last_oom() const { return last_oom_; }

 private:
  [[nodiscard]] Status shortage(const PhaseMeasurement& m, Bytes need, Bytes free,
                                Bytes capacity) const;

  Bytes ceiling_;
  const ScheduleExecutor& executor_;
  const plan::MemoryPlan& plan_;
  std::vector<PhaseMeasurement> measurements_;
  Bytes peak_, peak_allocated_;
  Status last_oom_;
};

}  // namespace neap::bridge
