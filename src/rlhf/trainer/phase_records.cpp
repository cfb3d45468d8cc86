#include "rlhf/trainer/phase_records.h"

#include <algorithm>

#include "plan/results/plan_words.h"

namespace neap::rlhf {
namespace {

// Bytes of offloaded parts. An update moves the same bytes in every run. For other phases the plan
// assumes the maximum number of micro-batches.
bool streamed_as_planned(const bridge::PhaseMeasurement& m, const plan::MemoryPlan& plan,
                         std::size_t phase) {
  const plan::PhasePlan& planned = plan.phases[phase];
  const bool steps = std::any_of(plan.tags.begin(), plan.tags.end(), [&](const plan::TagPlan& tag) {
    return !tag.hosted.states.empty() && tag.need[phase] == plan::Need::kNeed;
  });
  Bytes read, written;
  for (const bridge::StreamedUse& s : m.streamed) {
    read += s.use.disk_read;
    written += s.use.disk_written;
  }
  if (!steps)
    return m.streamed_to_device() <= planned.fetched && m.streamed_to_host() <= planned.stored &&
           read <= planned.disk_read && written <= planned.disk_written;
  const auto times = static_cast<std::uint64_t>(planned.times);
  return read * times == planned.disk_read && written * times == planned.disk_written &&
         m.streamed_to_device() * times == planned.fetched &&
         m.streamed_to_host() * times == planned.stored;
}

bool copied_as_planned(const std::vector<bridge::MoveRecord>& moves) {
  return std::all_of(moves.begin(), moves.end(),
                     [](const bridge::MoveRecord& move) { return move.copied == move.planned; });
}

bool as_planned(const bridge::PhaseMeasurement& m, const plan::MemoryPlan& plan,
                std::size_t phase) {
  return m.entry.scheduled && streamed_as_planned(m, plan, phase) &&
         copied_as_planned(m.entry.moves) && copied_as_planned(m.behind);
}

}  // namespace

report::PhaseRecord record_of(const bridge::PhaseMeasurement& m, const plan::MemoryPlan& plan,
                              std::int64_t step) {
  report::PhaseRecord record;
  record.step = static_cast<std::uint64_t>(step);
  record.phase = to_string(m.phase);
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
      record.moves.push_back({std::string(plan::kind_word(move.kind)), to_string(move.tag),
                              move.copied, move.copy_seconds, move.visible_seconds, move.behind});
    }
  }
  for (const bridge::StreamedUse& s : m.streamed)
    record.streamed.push_back({to_string(s.tag), std::string(to_string(s.kind)), s.use.to_device,
                               s.use.to_host, s.use.visible_seconds, s.use.disk_read,
                               s.use.disk_written, s.use.disk_seconds});
  record.peer_bytes = m.peers.bytes;
  record.peer_seconds = m.peers.seconds;
  record.peer_visible_seconds = m.peers.visible_seconds;
  const std::size_t phase = plan.index_of(m.phase).value();
  record.as_planned = as_planned(m, plan, phase);
  record.planned = plan.schedule[phase].peak;
  return record;
}

}  // namespace neap::rlhf
