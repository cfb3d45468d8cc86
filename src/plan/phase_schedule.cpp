#include "plan/phase_schedule.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "plan/overlap.h"
#include "plan/plan_words.h"
#include "plan/residency_search.h"
#include "plan/step_walk.h"

namespace neap::plan {
namespace {

constexpr std::size_t kMostPhases = 64;
PhaseMask all_phases(std::size_t n) {
  return n == kMostPhases ? ~PhaseMask{0} : phase_bit(n) - 1;
}

// In the phases that run once a tag has no choice.
PhaseMask needed_once(const MemoryPlan& plan, const TagPlan& tag) {
  PhaseMask phases = 0;
  for (std::size_t p = plan.cycle(); p < tag.need.size(); ++p)
    if (tag.need[p] == Need::kNeed) phases |= phase_bit(p);
  return phases;
}

// Maximal runs of phases, round the cycle, that do not need the tag, cut at loops' borders.
std::vector<PhaseMask> gaps_of(const MemoryPlan& plan, const TagPlan& tag) {
  const std::size_t n = plan.cycle();
  std::size_t first = 0;
  while (first < n && tag.need[first] != Need::kNeed) ++first;
  if (first == n) return {all_phases(n)};  // no phase needs it: one gap that never ends
  std::vector<PhaseMask> gaps;
  bool in_gap = false;
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t p = (first + k) % n;
    if (tag.need[p] == Need::kNeed) {
      in_gap = false;
      continue;
    }
    if (!in_gap || is_cut(plan, (p + n - 1) % n)) gaps.emplace_back(0);
    gaps.back() |= phase_bit(p);
    in_gap = true;
  }
  return gaps;
}

bool beats(const TagOption& a, const TagOption& b) {
  return (a.resident & ~b.resident) == 0 && a.cost <= b.cost && a.host <= b.host;
}

TagOption make_option(const std::vector<Visit>& walk, const TagPlan& tag, PhaseMask resident) {
  TagOption option;
  option.resident = resident;
  option.host = tag.hosted.bytes();
  TagState state;
  state.resident = (resident & phase_bit(walk.back().phase)) != 0;
  state.dirty = tag.contents == Contents::kLive;
  for (int round = 0; round < 2; ++round) {  // the first one reaches the steady cycle
    for (const Visit& visit : walk) {
      const bool stays = (resident & phase_bit(visit.phase)) != 0;
      const bool moves = state.resident != stays;
      const bool copies = moves && change_residency(tag, state, stays);
      if (tag.write[visit.phase]) state.dirty = true;
      if (!moves || round == 0) continue;
      const std::uint64_t bytes = tag.bytes.count() * static_cast<std::uint64_t>(visit.times);
      if (copies) option.cost.transfer_bytes += bytes;
      if (stays) option.cost.remap += bytes;
      if (tag.contents != Contents::kScratch) option.host = tag.bytes;
    }
  }
  return option;
}

// Exchanges between phases; moves behind them are counted by hide_copies.
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
  plan.peak = plan.all_resident = plan.host_bytes = Bytes();
  Bytes largest_transient;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    PhaseSchedule& s = plan.schedule[p];
    for (std::size_t t = 0; t < plan.tags.size(); ++t) {
      if (s.resident[t]) s.persistent += plan.tags[t].bytes;
    }
    if (p < plan.cycle()) plan.moved_per_step += plan.phases[p].fetched + plan.phases[p].stored;
    s.peak = s.persistent + plan.phases[p].transient;
    plan.peak = std::max(plan.peak, s.peak);
    if (p < plan.cycle()) largest_transient = std::max(largest_transient, plan.phases[p].transient);
  }
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    const TagPlan& tag = plan.tags[t];
    if (plan.in_cycle(tag) && !tag.blocks_of())
      plan.all_resident += tag.hosted.empty() ? tag.bytes : tag.hosted.bytes();
    plan.host_bytes += chosen[t].host;
  }
  plan.all_resident = std::max(plan.all_resident + largest_transient, plan.peak);
}

// Moves of every visit, from what the visit before left, round the cycle.
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
  // A copy that is not hidden enough was better exchanged for one the other way.
  if (plan.move_seconds >= between) write_schedule(plan, chosen, none);
}

Bytes needed(const MemoryPlan& plan, std::size_t phase) {
  Bytes here = plan.phases[phase].transient;
  for (const TagPlan& tag : plan.tags) {
    if (tag.need[phase] == Need::kNeed) here += tag.bytes;
  }
  return here;
}

}  // namespace

Status refusal(const MemoryPlan& plan, const Shortage& shortage) {
  const bool any_does = shortage.least != Bytes(~0ull);
  const bool lacks_host = shortage.with_host < shortage.least;
  std::string least =
      any_does ? "the least capacity is " + capacity_text(shortage.least) : "no capacity is enough";
  if (lacks_host && shortage.with_host <= shortage.capacity) {
    return {ErrorCode::kDoesNotFit,
            format("The job does not fit under {} with a host budget of {}: what leaves the device "
                   "has no room there. With enough host memory it fits from {} on; with this "
                   "budget {}. The budget is memory.host_budget, else what this machine has free",
                   shortage.capacity, plan.host_budget, capacity_text(shortage.with_host), least)};
  }
  if (lacks_host)
    least += format(" with a host budget of {}, and {} with enough host memory", plan.host_budget,
                    capacity_text(shortage.with_host));
  // The phase that sets the least capacity, for the message.
  std::size_t worst = 0;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    if (needed(plan, p) > needed(plan, worst)) worst = p;
  }
  std::string parts;
  for (const TagPlan& tag : plan.tags) {
    if (tag.need[worst] == Need::kNeed) parts += format("{} {}, ", tag.name(), tag.bytes);
  }
  const Bytes alone = needed(plan, worst);
  const char* stays = !plan.may_move && alone < shortage.least
                          ? ", and with it stays what cannot leave without \"move\" in memory.allow"
                          : "";
  return {ErrorCode::kDoesNotFit,
          format("The job does not fit under {}: {}. Phase \"{}\" needs {}: {}transient {}{}",
                 shortage.capacity, least, plan.phases[worst].name(), capacity_text(alone), parts,
                 plan.phases[worst].transient, stays)};
}

namespace {

Status check(const MemoryPlan& plan) {
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

}  // namespace

std::optional<Move> move_tag(const TagPlan& tag, TagState& state, bool resident) {
  if (state.resident == resident) return std::nullopt;
  const bool copies = change_residency(tag, state, resident);
  return Move{resident ? Move::Kind::kResume : Move::Kind::kPause, tag.id,
              tag.contents != Contents::kScratch ? arena::Policy::kHost : arena::Policy::kDiscard,
              tag.bytes, copies};
}

namespace {

std::size_t rank_of(const Move& move) {
  if (move.behind) return move.kind == Move::Kind::kResume ? 3 : 4;
  return move.kind == Move::Kind::kResume ? 2 : move.copies ? 1 : 0;
}

void sort(std::vector<Move>& moves) {
  std::stable_sort(moves.begin(), moves.end(),
                   [](const Move& a, const Move& b) { return rank_of(a) < rank_of(b); });
}

}  // namespace

std::vector<Move> moves_to(const MemoryPlan& plan, std::vector<TagState>& states,
                           const std::vector<bool>& resident) {
  std::vector<Move> moves;
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    if (auto move = move_tag(plan.tags[t], states[t], resident[t]))
      moves.push_back(std::move(*move));
  }
  sort(moves);
  return moves;
}

std::vector<Move> moves_into(const MemoryPlan& plan, std::vector<TagState>& states,
                             std::size_t phase) {
  std::vector<Move> moves;
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    const TagPlan& tag = plan.tags[t];
    if (auto move = move_tag(tag, states[t], plan.schedule[phase].resident[t])) {
      move->behind = move->kind == Move::Kind::kResume && plan.schedule[phase].behind[t];
      moves.push_back(std::move(*move));
    } else if (plan.schedule[phase].backup[t] && states[t].dirty) {
      states[t].dirty = false;
      moves.push_back({Move::Kind::kBackup, tag.id, arena::Policy::kHost, tag.bytes, true, true});
    }
  }
  sort(moves);
  return moves;
}

void enter_phase(const MemoryPlan& plan, std::vector<TagState>& states, std::size_t phase) {
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    if (plan.tags[t].write[phase]) states[t].dirty = true;
  }
}

std::vector<TagOption> tag_options(const MemoryPlan& plan, const TagPlan& tag) {
  const std::vector<PhaseMask> gaps = gaps_of(plan, tag);
  const std::vector<Visit> walk = walk_of(plan);
  PhaseMask forced = 0;
  for (std::size_t p = 0; p < plan.cycle(); ++p) {
    for (std::size_t g = 0; g < gaps.size(); ++g)
      if (tag.need[p] == Need::kDrop && (gaps[g] & phase_bit(p)) != 0) forced |= phase_bit(g);
  }
  std::vector<TagOption> all;
  for (PhaseMask away = 0; away < phase_bit(gaps.size()); ++away) {
    if ((away & forced) != forced) continue;
    PhaseMask resident = all_phases(plan.cycle()) | needed_once(plan, tag);
    for (std::size_t g = 0; g < gaps.size(); ++g)
      if ((away & phase_bit(g)) != 0) resident &= ~gaps[g];
    TagOption option = make_option(walk, tag, resident);
    if (plan.may_move || option.cost.transfer_bytes == 0) all.push_back(option);
  }
  std::stable_sort(all.begin(), all.end(), [](const TagOption& a, const TagOption& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.host < b.host;
  });
  std::vector<TagOption> kept;
  for (const TagOption& o : all) {
    if (std::none_of(kept.begin(), kept.end(), [&](const TagOption& k) { return beats(k, o); }))
      kept.push_back(o);
  }
  return kept;
}

Bytes min_capacity(const MemoryPlan& plan) {
  // Without a host budget every tag can be away wherever it is not needed.
  Bytes low;
  Bytes high;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    Bytes all = plan.phases[p].transient;
    for (const TagPlan& tag : plan.tags) all += tag.bytes;
    low = std::max(low, needed(plan, p));
    high = std::max(high, all);
  }
  if (any_residency_fits(plan, low)) return low;
  // What rests on the host alone may be over its budget.
  if (!any_residency_fits(plan, high)) return Bytes(~0ull);
  // The host budget binds, or nothing may move: fitting is monotone in the capacity.
  while (high - low > 1_B) {
    const Bytes middle = low + (high - low) / 2;
    (any_residency_fits(plan, middle) ? high : low) = middle;
  }
  return high;
}

namespace {

// Bytes that the link cannot move in `limit` seconds, or in those that operations leave of them.
Bytes most_bytes(const MemoryPlan& plan, double limit) {
  const double left = limit - (plan.overlap ? 0 : plan.operation_seconds());
  const double bytes = left * std::max({plan.link.to_host, plan.link.to_device, plan.link.both});
  if (bytes >= 1e18) return Bytes(~0ull);
  return bytes <= 0 ? Bytes() : Bytes(static_cast<std::uint64_t>(bytes) + 1);
}

}  // namespace

Result<bool> solve_if_fits(MemoryPlan& plan, spec::Residency mode, double limit) {
  NEAP_TRY(check(plan));
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
  const auto chosen = search_residency(plan, plan.capacity, most_bytes(plan, limit));
  if (!chosen) return false;
  write_schedule(plan, *chosen);
  return true;
}

Bytes least_needed(const MemoryPlan& plan) {
  Bytes most;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) most = std::max(most, needed(plan, p));
  return most;
}

Status solve_residency(MemoryPlan& plan, spec::Residency mode) {
  NEAP_TRY_ASSIGN(const bool fits, solve_if_fits(plan, mode));
  if (fits) return {};
  MemoryPlan free = plan;
  free.host_budget = Bytes();
  return refusal(plan, {plan.capacity, min_capacity(plan), min_capacity(free)});
}

}  // namespace neap::plan
