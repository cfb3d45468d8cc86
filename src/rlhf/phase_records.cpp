#include "rlhf/phase_records.h"

#include <algorithm>

#include "plan/plan_words.h"

namespace neap::rlhf {
namespace {

const plan::PhasePlan* planned_phase(const plan::MemoryPlan& plan, const std::string& name) {
  const auto found = std::find_if(plan.phases.begin(), plan.phases.end(),
                                  [&](const plan::PhasePlan& p) { return p.name == name; });
  return found == plan.phases.end() ? nullptr : &*found;
}

bool copied_as_planned(const std::vector<bridge::MoveRecord>& moves) {
  return std::all_of(moves.begin(), moves.end(),
                     [](const bridge::MoveRecord& move) { return move.copied == move.planned; });
}

bool as_planned(const bridge::PhaseMeasurement& m, const plan::MemoryPlan& plan) {
  // The plan's bytes are those of a step with the most micro-batches.
  const plan::PhasePlan* const phase = planned_phase(plan, m.phase);
  return phase != nullptr && m.entry.scheduled && m.streamed.to_device <= phase->fetched &&
         m.streamed.to_host <= phase->stored && copied_as_planned(m.entry.moves) &&
         copied_as_planned(m.behind);
}

}  // namespace

report::PhaseRecord record_of(const bridge::PhaseMeasurement& m, const plan::MemoryPlan& plan,
                              std::int64_t step) {
  report::PhaseRecord record;
  record.step = static_cast<std::uint64_t>(step);
  record.phase = m.phase;
  record.persistent = m.persistent;
  record.transient_allocated = m.transient_allocated;
  record.transient_reserved = m.transient_reserved;
  record.peak = m.peak;
  record.fragmentation_at_peak = m.fragmentation_at_peak;
  record.moved = m.moved();
  record.seconds = m.seconds;
  record.move_seconds = m.move_seconds();
  for (const auto* moves : {&m.entry.moves, &m.behind}) {
    for (const bridge::MoveRecord& move : *moves) {
      record.moves.push_back({std::string(plan::kind_word(move.kind)), move.tag, move.copied,
                              move.copy_seconds, move.visible_seconds, move.behind});
    }
  }
  record.streamed_to_host = m.streamed.to_host;
  record.streamed_to_device = m.streamed.to_device;
  record.stream_seconds = m.streamed.wait_seconds;
  record.as_planned = as_planned(m, plan);
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    if (plan.phases[p].name == m.phase) record.planned = plan.schedule[p].peak;
  }
  return record;
}

}  // namespace neap::rlhf
