#include "plan/phase_schedule.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "plan/residency_search.h"

namespace neap::plan {
namespace {

constexpr std::size_t kMostPhases = 64;
PhaseMask all_phases(std::size_t n) {
  return n == kMostPhases ? ~PhaseMask{0} : phase_bit(n) - 1;
}

// A phase of the walk. A loop's second round is used for all later ones: every tag is in the
// same state in them.
struct Visit {
  std::size_t phase = 0;
  bool again = false;
  std::int64_t times = 1;
};
std::vector<Visit> walk_of(const MemoryPlan& plan) {
  std::vector<Visit> walk;
  std::size_t loop = 0;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    walk.push_back({p});
    if (loop == plan.loops.size() || plan.loops[loop].last != p) continue;
    const Loop& l = plan.loops[loop++];
    if (l.times < 2) continue;
    for (std::size_t q = l.first; q <= l.last; ++q) walk.push_back({q, true, l.times - 1});
  }
  return walk;
}

// A loop begins or ends between phase p and the next.
bool is_cut(const MemoryPlan& plan, std::size_t p) {
  const std::size_t next = (p + 1) % plan.phases.size();
  return std::any_of(plan.loops.begin(), plan.loops.end(), [&](const Loop& l) {
    return l.times > 1 && (l.last == p || l.first == next);
  });
}

// Maximal runs of phases, round the cycle, that do not need the tag, cut at loops' borders.
std::vector<PhaseMask> gaps_of(const MemoryPlan& plan, const TagPlan& tag) {
  const std::size_t n = tag.need.size();
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

// Whether the move copies.
bool change_residency(const TagPlan& tag, TagState& state, bool resident) {
  const bool keeps = tag.contents != Contents::kScratch;
  state.resident = resident;
  if (resident) return keeps;
  const bool copies = keeps && state.dirty;
  state.dirty = !keeps;
  return copies;
}

TagOption make_option(const std::vector<Visit>& walk, const TagPlan& tag, PhaseMask resident) {
  TagOption option;
  option.resident = resident;
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

// Every window comes and goes once in each phase that streams the tag.
TagOption streamed_option(const MemoryPlan& plan, const TagPlan& tag) {
  TagOption option;
  for (std::size_t p = 0; p < tag.need.size(); ++p) {
    if (tag.need[p] != Need::kStream) continue;
    const auto times = static_cast<std::uint64_t>(plan.phases[p].times);
    option.cost.transfer_bytes += 2 * tag.bytes.count() * times;
    option.cost.remap += tag.bytes.count() * times;
  }
  option.host = tag.bytes;
  return option;
}

// Of moves of a kind: all bytes, and those that are copied.
struct Moved {
  Bytes bytes, copied;
};
Moved moved(const std::vector<Move>& moves, Move::Kind kind) {
  Moved sum;
  for (const Move& move : moves) {
    if (move.kind != kind) continue;
    sum.bytes += move.bytes;
    if (move.copies) sum.copied += move.bytes;
  }
  return sum;
}

void add_moves(MemoryPlan& plan, const std::vector<Move>& moves, std::int64_t times) {
  const Moved out = moved(moves, Move::Kind::kPause);
  const Moved in = moved(moves, Move::Kind::kResume);
  plan.moved_per_step += (out.copied + in.copied) * static_cast<std::uint64_t>(times);
  plan.move_seconds +=
      plan.link.seconds(out.copied, in.copied, in.bytes) * static_cast<double>(times);
}

// Of one update. The first window comes alone, each other one while the one before leaves, and the
// last leaves alone.
double window_seconds(const MemoryPlan& plan, const TagPlan& tag) {
  double seconds = 0;
  Bytes before;
  for (const WindowPlan& window : tag.windows) {
    seconds += plan.link.seconds(before, window.bytes, window.bytes);
    before = window.bytes;
  }
  return seconds + plan.link.seconds(before, Bytes(), Bytes());
}

void write_sums(MemoryPlan& plan, const std::vector<TagOption>& chosen) {
  plan.peak = plan.all_resident = plan.host_bytes = Bytes();
  Bytes largest_transient;
  plan.move_seconds += streaming_seconds(plan);
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    PhaseSchedule& s = plan.schedule[p];
    for (std::size_t t = 0; t < plan.tags.size(); ++t) {
      if (s.resident[t]) s.persistent += plan.tags[t].bytes;
      if (plan.tags[t].need[p] == Need::kStream)
        plan.moved_per_step +=
            plan.tags[t].bytes * 2 * static_cast<std::uint64_t>(plan.phases[p].times);
    }
    s.peak = s.persistent + plan.phases[p].window + plan.phases[p].transient;
    plan.peak = std::max(plan.peak, s.peak);
    largest_transient = std::max(largest_transient, plan.phases[p].transient);
  }
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    plan.all_resident += plan.tags[t].bytes;
    plan.host_bytes += chosen[t].host;
  }
  plan.all_resident += largest_transient;
}

// Moves of every visit, from what the visit before left, round the cycle.
void write_schedule(MemoryPlan& plan, const std::vector<TagOption>& chosen) {
  plan.schedule.assign(plan.phases.size(), {});
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    for (const TagOption& option : chosen)
      plan.schedule[p].resident.push_back((option.resident & phase_bit(p)) != 0);
  }
  plan.moved_per_step = Bytes();
  plan.move_seconds = 0;
  const std::vector<Visit> walk = walk_of(plan);
  std::vector<TagState> states(plan.tags.size());
  for (std::size_t t = 0; t < states.size(); ++t) {
    states[t].resident = plan.schedule.back().resident[t];
    states[t].dirty = plan.tags[t].contents == Contents::kLive;
  }
  for (int round = 0; round < 2; ++round) {
    for (const Visit& visit : walk) {
      PhaseSchedule& s = plan.schedule[visit.phase];
      std::vector<Move> moves = moves_to(plan, states, s.resident);
      enter_phase(plan, states, visit.phase);
      if (round == 0) continue;
      add_moves(plan, moves, visit.times);
      (visit.again ? s.again : s.moves) = std::move(moves);
    }
  }
  write_sums(plan, chosen);
}

Bytes needed(const MemoryPlan& plan, std::size_t phase) {
  const PhasePlan& p = plan.phases[phase];
  Bytes here = p.transient + p.window + p.headroom;
  for (const TagPlan& tag : plan.tags) {
    if (tag.need[phase] == Need::kNeed) here += tag.bytes;
  }
  return here;
}

}  // namespace

Status refusal(const MemoryPlan& plan) {
  const Bytes least = min_capacity(plan);
  MemoryPlan free = plan;
  free.host_budget = Bytes();
  if (const Bytes from = min_capacity(free); from <= plan.capacity && from < least) {
    return {ErrorCode::kDoesNotFit,
            format("The job does not fit under {} with a host budget of {}: what leaves the device "
                   "has no room there. With enough host memory it fits from {} on. The budget is "
                   "memory.host_budget, else what this machine has free",
                   plan.capacity, plan.host_budget, from)};
  }
  // The phase that sets the least capacity, for the message.
  std::size_t worst = 0;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    if (needed(plan, p) > needed(plan, worst)) worst = p;
  }
  std::string parts;
  for (const TagPlan& tag : plan.tags) {
    if (tag.need[worst] == Need::kNeed) parts += format("{} {}, ", tag.tag, tag.bytes);
    if (tag.need[worst] == Need::kStream)
      parts += format("windows of {} {}, ", tag.tag,
                      plan.phases[worst].window + plan.phases[worst].headroom);
  }
  const bool stays = needed(plan, worst) <= plan.capacity;
  const char* why = stays ? " without \"move\" in memory.allow" : "";
  return {ErrorCode::kDoesNotFit,
          format("The job does not fit under {}{}: the least capacity is {}. Phase \"{}\" needs "
                 "{}: {}transient {}",
                 plan.capacity, why, least, plan.phases[worst].name, needed(plan, worst), parts,
                 plan.phases[worst].transient)};
}

namespace {

Status check(const MemoryPlan& plan) {
  if (plan.phases.empty() || plan.phases.size() > kMostPhases)
    return {ErrorCode::kInvalidArgument,
            format("A plan has 1 to 64 phases, not {}", plan.phases.size())};
  for (const TagPlan& tag : plan.tags) {
    if (tag.need.size() != plan.phases.size() || tag.write.size() != plan.phases.size())
      return {ErrorCode::kInvalidArgument,
              format("Tag \"{}\" does not say what each phase needs of it", tag.tag)};
    const bool drops = std::count(tag.need.begin(), tag.need.end(), Need::kDrop) > 0;
    if (drops && tag.contents != Contents::kScratch)
      return {ErrorCode::kInvalidArgument,
              format("Tag \"{}\" is dropped but its contents must be kept", tag.tag)};
  }
  return {};
}

}  // namespace

std::optional<Move> move_tag(const TagPlan& tag, TagState& state, bool resident) {
  if (state.resident == resident) return std::nullopt;
  const bool copies = change_residency(tag, state, resident);
  return Move{resident ? Move::Kind::kResume : Move::Kind::kPause, tag.tag,
              tag.contents != Contents::kScratch ? arena::Policy::kHost : arena::Policy::kDiscard,
              tag.bytes, copies};
}

std::vector<Move> moves_to(const MemoryPlan& plan, std::vector<TagState>& states,
                           const std::vector<bool>& resident) {
  std::vector<Move> moves;
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    if (auto move = move_tag(plan.tags[t], states[t], resident[t]))
      moves.push_back(std::move(*move));
  }
  const auto rank = [](const Move& m) {
    return m.kind == Move::Kind::kResume ? 2 : m.copies ? 1 : 0;
  };
  std::stable_sort(moves.begin(), moves.end(),
                   [&](const Move& a, const Move& b) { return rank(a) < rank(b); });
  return moves;
}

void enter_phase(const MemoryPlan& plan, std::vector<TagState>& states, std::size_t phase) {
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    if (plan.tags[t].write[phase]) states[t].dirty = true;
  }
}

std::vector<TagOption> tag_options(const MemoryPlan& plan, const TagPlan& tag) {
  if (tag.streamed()) return {streamed_option(plan, tag)};
  const std::vector<PhaseMask> gaps = gaps_of(plan, tag);
  const std::vector<Visit> walk = walk_of(plan);
  PhaseMask forced = 0;
  for (std::size_t p = 0; p < tag.need.size(); ++p) {
    for (std::size_t g = 0; g < gaps.size(); ++g)
      if (tag.need[p] == Need::kDrop && (gaps[g] & phase_bit(p)) != 0) forced |= phase_bit(g);
  }
  std::vector<TagOption> all;
  for (PhaseMask away = 0; away < phase_bit(gaps.size()); ++away) {
    if ((away & forced) != forced) continue;
    PhaseMask resident = all_phases(tag.need.size());
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
    Bytes all = plan.phases[p].transient + plan.phases[p].window + plan.phases[p].headroom;
    for (const TagPlan& tag : plan.tags) all += tag.bytes;
    low = std::max(low, needed(plan, p));
    high = std::max(high, all);
  }
  if (search_residency(plan, low)) return low;
  // Of streamed tags the copies alone may be over the host budget.
  if (!search_residency(plan, high)) return Bytes(~0ull);
  // The host budget binds, or nothing may move: fitting is monotone in the capacity.
  while (high - low > 1_B) {
    const Bytes middle = low + (high - low) / 2;
    (search_residency(plan, middle) ? high : low) = middle;
  }
  return high;
}

double streaming_seconds(const MemoryPlan& plan) {
  double sum = 0;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    for (const TagPlan& tag : plan.tags) {
      if (tag.need[p] == Need::kStream)
        sum += window_seconds(plan, tag) * static_cast<double>(plan.phases[p].times);
    }
  }
  return sum;
}

namespace {

// Bytes that the link cannot move in the seconds that operations leave of `limit`.
Bytes most_bytes(const MemoryPlan& plan, double limit) {
  double left = limit;
  for (const PhasePlan& phase : plan.phases) left -= phase.seconds;
  const double bytes = left * std::max({plan.link.to_host, plan.link.to_device, plan.link.both});
  if (bytes >= 1e18) return Bytes(~0ull);
  return bytes <= 0 ? Bytes() : Bytes(static_cast<std::uint64_t>(bytes) + 1);
}

}  // namespace

Result<bool> solve_if_fits(MemoryPlan& plan, const std::string& mode, double limit) {
  NEAP_TRY(check(plan));
  if (mode == "all") {
    std::vector<TagOption> chosen;
    for (const TagPlan& tag : plan.tags) {
      TagOption stays;
      stays.resident = all_phases(plan.phases.size());
      chosen.push_back(tag.streamed() ? streamed_option(plan, tag) : stays);
    }
    write_schedule(plan, chosen);
    return true;
  }
  if (mode != "auto")
    return Status(ErrorCode::kInvalidArgument,
                  format("memory.residency is \"{}\"; it can be \"auto\" or \"all\"", mode));
  const auto chosen = search_residency(plan, plan.capacity, most_bytes(plan, limit));
  if (chosen) write_schedule(plan, *chosen);
  return chosen.has_value();
}

Bytes least_needed(const MemoryPlan& plan) {
  Bytes most;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) most = std::max(most, needed(plan, p));
  return most;
}

Status solve_residency(MemoryPlan& plan, const std::string& mode) {
  NEAP_TRY_ASSIGN(const bool fits, solve_if_fits(plan, mode));
  return fits ? Status() : refusal(plan);
}

}  // namespace neap::plan
