#include "rlhf/phase_records.h"

#include <algorithm>

#include "plan/plan_words.h"

namespace neap::rlhf {
namespace {

// Bytes of streamed tags in one run of the phase, each way.
Bytes streamed_bytes(const plan::MemoryPlan& plan, const std::string& phase) {
  Bytes sum;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    if (plan.phases[p].name != phase) continue;
    for (const plan::TagPlan& tag : plan.tags)
      if (tag.need[p] == plan::Need::kStream) sum += tag.bytes;
  }
  return sum;
}

bool copied_as_planned(const std::vector<bridge::MoveRecord>& moves) {
  return std::all_of(moves.begin(), moves.end(),
                     [](const bridge::MoveRecord& move) { return move.copied == move.planned; });
}

bool as_planned(const bridge::PhaseMeasurement& m, const plan::MemoryPlan& plan) {
  const Bytes streamed = streamed_bytes(plan, m.phase);
  return m.entry.scheduled && m.streamed.to_host == streamed && m.streamed.to_device == streamed &&
         copied_as_planned(m.entry.moves) && copied_as_planned(m.behind);
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
  record.stream_seconds = m.streamed.seconds;
  record.weights_fetched = m.weights.fetched;
  record.weights_wait_seconds = m.weights.wait_seconds;
  record.as_planned = as_planned(m, plan);
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    if (plan.phases[p].name == m.phase) record.planned = plan.schedule[p].peak;
  }
  return record;
}

}  // namespace neap::rlhf
