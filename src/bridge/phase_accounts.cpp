#include "bridge/phase_accounts.h"

#include <algorithm>

#include "base/format.h"

namespace neap::bridge {

PhaseAccounts::PhaseAccounts(Bytes ceiling, const ScheduleExecutor& executor,
                             const plan::MemoryPlan& plan)
    : ceiling_(ceiling), executor_(executor), plan_(plan) {}

Bytes PhaseAccounts::room() const {
  if (ceiling_.is_zero()) return {};
  // One byte remains if the limit is exhausted, because zero would mean no limit.
  const Bytes taken = executor_.persistent();
  return std::max(saturating_sub(ceiling_, taken), Bytes(1));
}

Status PhaseAccounts::add(PhaseMeasurement m) {
  m.peak = m.persistent + m.transient_reserved;
  peak_ = std::max(peak_, m.peak);
  peak_allocated_ = std::max(peak_allocated_, m.persistent + m.transient_allocated);
  Status status;
  if (!ceiling_.is_zero() && m.peak > ceiling_) status = shortage(m, m.peak, ceiling_, ceiling_);
  measurements_.push_back(std::move(m));
  return status;
}

void PhaseAccounts::note_oom(const PhaseMeasurement& m, Bytes request,
                             const device::MemoryInfo& after) {
  const Bytes taken = m.persistent + m.transient_reserved;
  last_oom_ =
      ceiling_.is_zero()
          ? shortage(m, request, saturating_sub(after.free, m.transient_reserved), after.total)
          : shortage(m, request, saturating_sub(ceiling_, taken), ceiling_);
}

Status PhaseAccounts::shortage(const PhaseMeasurement& m, Bytes need, Bytes free,
                               Bytes capacity) const {
  MemoryShortage out{need, free, capacity, {{"temporaries", m.transient_reserved}}};
  const ScheduleExecutor::Set resident = executor_.resident();
  for (std::size_t i = 0; i < plan_.tags.size(); ++i) {
    if (resident[i]) out.holders.push_back({plan_.tags[i].name(), plan_.tags[i].bytes});
  }
  return Status::out_of_memory(format("Phase \"{}\"", to_string(m.phase)), std::move(out));
}

}  // namespace neap::bridge
