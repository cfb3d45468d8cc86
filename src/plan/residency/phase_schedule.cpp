#include "plan/residency/phase_schedule.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "plan/residency/least_capacity.h"
#include "plan/residency/overlap.h"
#include "plan/residency/residency_search.h"
#include "plan/residency/step_walk.h"
#include "plan/residency/tag_moves.h"
#include "plan/residency/tag_options.h"

namespace neap::plan {
namespace {

// Exchanges between phases. hide_copies() counts the moves that overlap.
void add_moves(MemoryPlan& plan, const std::vector<Move>& moves, std::int64_t times) {
  Bytes out, in, mapped, all;
  for (const Move& move : moves) {
    const Bytes copied = move.copies ? move.bytes : Bytes();
    all += copied;
    if (move.kind == Move::Kind::kResume) mapped += move.bytes;
    if (!move.behind) (move.kind == Move::Kind::kResume ? in : out) += copied;
  }
  const double seconds = plan.link.seconds(out, in, mapped) * static_cast<double>(times);
  plan.moved_per_step += all * static_cast<std::uint64_t>(times);
  plan.copy_seconds += seconds;
  plan.move_seconds += seconds;
}

void write_sums(MemoryPlan& plan, const std::vector<TagOption>& chosen) {
  plan.peak = plan.all_resident = plan.host_bytes = plan.disk_bytes = Bytes();
  plan.moved_per_step += plan.streamed_per_step();
  Bytes largest_transient;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    PhaseSchedule& s = plan.schedule[p];
    for (std::size_t t = 0; t < plan.tags.size(); ++t) {
      if (s.resident[t]) s.persistent += plan.tags[t].bytes;
    }
    s.peak = s.persistent + plan.phases[p].transient;
    plan.peak = std::max(plan.peak, s.peak);
    if (p < plan.cycle()) largest_transient = std::max(largest_transient, plan.phases[p].transient);
  }
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    const TagPlan& tag = plan.tags[t];
    // Offloaded weights are counted with their host memory, so the rollout copy adds nothing.
    const TagPlan* const slots = plan.slots_behind(tag);
    const bool counted = slots != nullptr && !slots->hosted.empty() && !slots->gathers;
    if (plan.in_cycle(tag) && !counted)
      plan.all_resident += (tag.gathers || tag.hosted.empty() ? tag.bytes : Bytes()) +
                           (tag.hosted.empty() ? Bytes() : tag.hosted.bytes());
    plan.host_bytes += chosen[t].host;
    plan.disk_bytes += tag.hosted.on_disk();
  }
  plan.all_resident = std::max(plan.all_resident + largest_transient, plan.peak);
}

// The moves of every visit in the cycle, starting from the state that the previous visit left.
void write_schedule(MemoryPlan& plan, const std::vector<TagOption>& chosen,
                    const Overlap& overlap) {
  plan.schedule.assign(plan.phases.size(), {});
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    for (std::size_t t = 0; t < plan.tags.size(); ++t) {
      plan.schedule[p].resident.push_back((chosen[t].resident & phase_bit(p)) != 0);
      plan.schedule[p].behind.push_back((overlap.resumes[t] & phase_bit(p)) != 0);
      plan.schedule[p].backup.push_back((overlap.backups[t] & phase_bit(p)) != 0);
    }
  }
  plan.moved_per_step = Bytes();
  plan.copy_seconds = overlap.copy_seconds;
  plan.move_seconds = overlap.visible_seconds;
  const std::vector<Visit> walk = walk_of(plan);
  std::vector<TagState> states(plan.tags.size());
  for (std::size_t t = 0; t < states.size(); ++t) {
    states[t].resident = plan.schedule[plan.cycle() - 1].resident[t];
    states[t].dirty = plan.tags[t].contents == Contents::kLive;
  }
  for (int round = 0; round < 2; ++round) {
    for (const Visit& visit : walk) {
      PhaseSchedule& s = plan.schedule[visit.phase];
      std::vector<Move> moves = moves_into(plan, states, visit.phase);
      enter_phase(plan, states, visit.phase);
      if (round == 0) continue;
      add_moves(plan, moves, visit.times);
      (visit.again ? s.again : s.moves) = std::move(moves);
    }
  }
  write_sums(plan, chosen);
}

void write_schedule(MemoryPlan& plan, const std::vector<TagOption>& chosen) {
  const std::vector<PhaseMask> nothing(plan.tags.size(), 0);
  const Overlap none{nothing, nothing};
  write_schedule(plan, chosen, none);
  if (!plan.overlap) return;
  const double between = plan.move_seconds;
  std::vector<TagOption> longer = chosen;
  const Overlap overlap = hide_copies(plan, longer);
  if (overlap.copy_seconds <= 0) return;
  write_schedule(plan, longer, overlap);
  // An overlapped copy that is mostly exposed is worse than an exchange with a copy the other way.
  if (plan.move_seconds >= between) write_schedule(plan, chosen, none);
}

// The bytes that the link can move in `limit` seconds, or in the part that operations leave.
Bytes most_bytes(const MemoryPlan& plan, double limit) {
  const double left = limit - (plan.overlap ? 0 : plan.operation_seconds());
  const double bytes = left * std::max({plan.link.to_host, plan.link.to_device, plan.link.both});
  if (bytes >= 1e18) return Bytes(~0ull);
  return bytes <= 0 ? Bytes() : Bytes(static_cast<std::uint64_t>(bytes) + 1);
}

}  // namespace

Status check_tags(const MemoryPlan& plan) {
  if (plan.cycle() == 0 || plan.phases.size() > kMostPhases)
    return {ErrorCode::kInvalidArgument,
            format("A plan has 1 to 64 phases, not {}", plan.phases.size())};
  for (const TagPlan& tag : plan.tags) {
    if (tag.need.size() != plan.phases.size() || tag.write.size() != plan.phases.size())
      return {ErrorCode::kInvalidArgument,
              format("Tag \"{}\" does not say what each phase needs of it", tag.name())};
    const bool drops = std::count(tag.need.begin(), tag.need.end(), Need::kDrop) > 0;
    if (drops && tag.contents != Contents::kScratch)
      return {ErrorCode::kInvalidArgument,
              format("Tag \"{}\" is dropped but its contents must be kept", tag.name())};
  }
  return {};
}

Result<bool> solve_if_fits(MemoryPlan& plan, spec::Residency mode, double limit,
                           const TagChoices* choices) {
  NEAP_TRY(check_tags(plan));
  if (mode == spec::Residency::kAll) {
    std::vector<TagOption> chosen;
    for (const TagPlan& tag : plan.tags) {
      TagOption stays;
      stays.resident = needed_once(plan, tag);
      if (plan.in_cycle(tag)) stays.resident |= all_phases(plan.cycle());
      stays.host = tag.hosted.bytes();
      chosen.push_back(stays);
    }
    write_schedule(plan, chosen);
    return true;
  }
  std::optional<TagChoices> made;
  if (choices == nullptr) choices = &made.emplace(plan);
  const auto chosen = search_residency(plan, *choices, plan.capacity, most_bytes(plan, limit));
  if (!chosen) return false;
  write_schedule(plan, *chosen);
  return true;
}

Status solve_residency(MemoryPlan& plan, spec::Residency mode) {
  NEAP_TRY_ASSIGN(const bool fits, solve_if_fits(plan, mode));
  if (fits) return {};
  MemoryPlan free = plan;
  free.host_budget = Bytes();
  return refusal(plan, {plan.capacity, min_capacity(plan), min_capacity(free)});
}

}  // namespace neap::plan
