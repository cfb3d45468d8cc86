// What phases took, and whether the ceiling held.
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
  /// `ceiling`: what the user set; zero: none. `executor` and `plan` outlive it.
  PhaseAccounts(Bytes ceiling, const ScheduleExecutor& executor, const plan::MemoryPlan& plan);

  /// What the temporaries of the open phase may take in addition to its tags; zero: as much as
  /// there is.
  [[nodiscard]] Bytes room() const;
  /// Keeps the measurement of a phase that has ended. On CUDA libtorch's allocator is limited to its room, give or take a
  /// segment: the status says where the phase took more than the ceiling.
  [[nodiscard]] Status add(PhaseMeasurement measurement);
  /// Notes a request of a phase that libtorch's allocator failed. `free`: of the device, without a ceiling.
  void note_oom(const PhaseMeasurement& measurement, Bytes request, Bytes free);

  [[nodiscard]] std::vector<PhaseMeasurement> take() { return std::exchange(measurements_, {}); }
  [[nodiscard]] Bytes peak() const { return peak_; }
  [[nodiscard]] Bytes peak_allocated() const { return peak_allocated_; }
  [[nodiscard]] const Status& last_oom() const { return last_oom_; }

 private:
  [[nodiscard]] Status shortage(const PhaseMeasurement& m, Bytes need, Bytes free) const;

  Bytes ceiling_;
  const ScheduleExecutor& executor_;
  const plan::MemoryPlan& plan_;
  std::vector<PhaseMeasurement> measurements_;
  Bytes peak_, peak_allocated_;
  Status last_oom_;
};

}  // namespace neap::bridge
