#include "plan/residency/tag_moves.h"

#include <algorithm>

namespace neap::plan {
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

bool change_residency(const TagPlan& tag, TagState& state, bool resident) {
  const bool keeps = tag.contents != Contents::kScratch;
  state.resident = resident;
  if (resident) return keeps;
  const bool copies = keeps && state.dirty;
  state.dirty = !keeps;
  return copies;
}

std::optional<Move> move_tag(const TagPlan& tag, TagState& state, bool resident) {
  if (state.resident == resident || tag.is_outside()) return std::nullopt;
  const bool copies = change_residency(tag, state, resident);
  return Move{resident ? Move::Kind::kResume : Move::Kind::kPause, tag.id,
              tag.contents != Contents::kScratch ? arena::Policy::kHost : arena::Policy::kDiscard,
              tag.bytes, copies};
}

std::vector<Move> moves_to(const MemoryPlan& plan, std::vector<TagState>& states,
                           const std::vector<bool>& resident) {
  std::vector<Move> moves;
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    if (auto move = move_tag(plan.tags[t], states[t], resident[t])) moves.push_back(*move);
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
      moves.push_back(*move);
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

}  // namespace neap::plan
