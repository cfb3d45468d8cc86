#include "plan/residency/tag_options.h"

#include <algorithm>

#include "plan/residency/step_walk.h"
#include "plan/residency/tag_moves.h"

namespace neap::plan {
namespace {

// Maximal runs of phases in the cycle that do not need the tag, cut at loops' borders.
std::vector<PhaseMask> gaps_of(const MemoryPlan& plan, const TagPlan& tag) {
  const std::size_t n = plan.cycle();
  std::size_t first = 0;
  while (first < n && tag.need[first] != Need::kNeed) ++first;
  if (first == n) return {all_phases(n)};  // no phase needs it: one gap without end
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
  for (int round = 0; round < 2; ++round) {  // the first round reaches the steady cycle
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

}  // namespace

PhaseMask needed_once(const MemoryPlan& plan, const TagPlan& tag) {
  PhaseMask phases = 0;
  for (std::size_t p = plan.cycle(); p < tag.need.size(); ++p)
    if (tag.need[p] == Need::kNeed) phases |= phase_bit(p);
  return phases;
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

}  // namespace neap::plan
