#include "plan/residency/overlap.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "plan/residency/step_walk.h"
#include "plan/residency/tag_moves.h"

namespace neap::plan {
namespace {

enum Direction : std::size_t { kToHost = 0, kToDevice = 1 };

// Copies of one tag with one residency, per step.
struct Copies {
  PhaseMask resumes = 0, backups = 0;  // phases with which it copies
  double bytes = 0;                    // of all copies
  double behind_seconds = 0;           // of copies that overlap with phases, hidden or exposed
  double visible_seconds = 0;          // exposed part of them
  double between_seconds = 0;          // of copies between phases
  [[nodiscard]] double waited() const { return visible_seconds + between_seconds; }
};

// Free seconds of each link direction in each phase visit of a step.
class LinkTime {
 public:
  explicit LinkTime(const MemoryPlan& plan) : plan_(plan), walk_(walk_of(plan)) {
    // Both directions may be in use.
    rate_[kToHost] = std::min(plan.link.to_host, plan.link.both / 2);
    rate_[kToDevice] = std::min(plan.link.to_device, plan.link.both / 2);
    for (const Visit& visit : walk_) {
      const PhasePlan& phase = plan.phases[visit.phase];
      // Minus the phase's own copies.
      const auto left = [&](Bytes copied, Direction direction) {
        const double seconds = static_cast<double>(copied.count()) / rate_[direction];
        return std::max(0.0, phase.seconds - seconds) / static_cast<double>(phase.times);
      };
      free_.push_back({left(phase.stored, kToHost), left(phase.fetched, kToDevice)});
    }
  }

  [[nodiscard]] Copies look(const TagPlan& tag, PhaseMask resident) const {
    Free free = free_;
    return walk(tag, resident, free);
  }
  // As copies_of, and marks the time as used.
  Copies take(const TagPlan& tag, PhaseMask resident) { return walk(tag, resident, free_); }

 private:
  using Free = std::vector<std::array<double, 2>>;  // per visit

  Copies walk(const TagPlan& tag, PhaseMask resident, Free& free) const {
    Copies sum;
    sum.backups = backups_of(tag, resident, free);
    TagState state;
    state.resident = (resident & phase_bit(walk_.back().phase)) != 0;
    state.dirty = tag.contents == Contents::kLive;
    for (int round = 0; round < 2; ++round) {  // the first round reaches the steady cycle
      for (std::size_t v = 0; v < walk_.size(); ++v) {
        const std::size_t phase = walk_[v].phase;
        const bool stays = (resident & phase_bit(phase)) != 0;
        if (state.resident != stays && change_residency(tag, state, stays) && round == 1) {
          const bool behind = stays && tag.need[phase] != Need::kNeed;
          if (behind) sum.resumes |= phase_bit(phase);
          add(sum, free[v], tag, walk_[v], stays ? kToDevice : kToHost, behind);
        }
        if (state.dirty && (sum.backups & phase_bit(phase)) != 0) {
          state.dirty = false;
          if (round == 1) add(sum, free[v], tag, walk_[v], kToHost, true);
        }
        if (tag.write[phase]) state.dirty = true;
      }
    }
    return sum;
  }

  [[nodiscard]] double seconds_of(const TagPlan& tag, Direction direction) const {
    return static_cast<double>(tag.bytes.count()) / rate_[direction];
  }
  void add(Copies& sum, std::array<double, 2>& free, const TagPlan& tag, const Visit& visit,
           Direction direction, bool behind) const {
    const auto times = static_cast<double>(visit.times);
    const auto bytes = static_cast<double>(tag.bytes.count());
    sum.bytes += bytes * times;
    if (!behind) {
      // Best case: an exchange with the same bytes the other way.
      sum.between_seconds += bytes / plan_.link.both * times;
      return;
    }
    const double seconds = seconds_of(tag, direction);
    const double hidden = std::min(seconds, free[direction]);
    free[direction] -= hidden;
    sum.behind_seconds += seconds * times;
    sum.visible_seconds += (seconds - hidden) * times;
  }

  // For each absence of the tag: among the phases since its last write, the one that hides most of
  // the copy, if that is more than half. It does not cross a loop's border, where the next phase
  // varies.
  [[nodiscard]] PhaseMask backups_of(const TagPlan& tag, PhaseMask resident,
                                     const Free& free) const {
    PhaseMask backups = 0;
    if (tag.contents == Contents::kScratch) return backups;
    const std::size_t n = plan_.cycle();
    const auto here = [&](std::size_t p) { return (resident & phase_bit(p)) != 0; };
    for (std::size_t q = 0; q < n; ++q) {
      double most = seconds_of(tag, kToHost) / 2;
      PhaseMask best = 0;
      for (std::size_t p = (q + n - 1) % n; !here(q) && p != q; p = (p + n - 1) % n) {
        if (!here(p) || tag.write[p] || is_cut(plan_, p)) break;
        if (free_behind(p, free) <= most) continue;
        most = free_behind(p, free);
        best = phase_bit(p);
      }
      backups |= best;
    }
    return backups;
  }
  [[nodiscard]] double free_behind(std::size_t phase, const Free& free) const {
    for (std::size_t v = 0; v < walk_.size(); ++v)
      if (walk_[v].phase == phase) return free[v][kToHost];
    return 0;
  }

  const MemoryPlan& plan_;
  std::vector<Visit> walk_;
  std::array<double, 2> rate_{};
  Free free_;
};

// Extends residencies, one tag after another.
class Extension {
 public:
  Extension(const MemoryPlan& plan, const std::vector<TagOption>& chosen)
      : phases_(plan.cycle()), room_(phases_, Bytes(~0ull)) {
    if (plan.capacity.is_zero()) return;
    for (std::size_t p = 0; p < phases_; ++p) {
      Bytes taken = plan.phases[p].transient;
      for (std::size_t t = 0; t < chosen.size(); ++t)
        if ((chosen[t].resident & phase_bit(p)) != 0) taken += plan.tags[t].bytes;
      room_[p] = saturating_sub(plan.capacity, taken);
    }
  }

  // The residency with the least exposed time; among equals the one with the fewest phases.
  PhaseMask extend(const LinkTime& link, const TagPlan& tag, PhaseMask resident) {
    const Copies before = link.look(tag, resident);
    double least = before.waited();
    for (bool better = true; better && least > 0;) {
      better = false;
      PhaseMask best = resident;
      for (const PhaseMask longer : longer_ones(tag, resident)) {
        const Copies copies = link.look(tag, longer);
        // Moving in every round of a loop may be hidden, but copies more bytes.
        if (copies.waited() >= least * (1 - kSame) || copies.bytes > before.bytes) continue;
        least = copies.waited();
        best = longer;
        better = true;
      }
      resident = take(tag, resident, best);
    }
    return resident;
  }

 private:
  static constexpr double kSame = 1e-6;

  [[nodiscard]] std::size_t next(std::size_t p, bool forward) const {
    return (p + (forward ? 1 : phases_ - 1)) % phases_;
  }
  // Extends from each end of each absence as far as the tag fits, leaving at least one phase of
  // absence. Short extensions first.
  [[nodiscard]] std::vector<PhaseMask> longer_ones(const TagPlan& tag, PhaseMask resident) const {
    std::vector<PhaseMask> all;
    for (const bool forward : {false, true}) {
      for (std::size_t edge = 0; edge < phases_; ++edge) {
        if ((resident & phase_bit(edge)) == 0) continue;
        PhaseMask longer = resident;
        for (std::size_t p = next(edge, forward);; p = next(p, forward)) {
          const bool ends = (resident & phase_bit(next(p, forward))) != 0;
          if ((resident & phase_bit(p)) != 0 || ends || tag.bytes > room_[p]) break;
          longer |= phase_bit(p);
          all.push_back(longer);
        }
      }
    }
    return all;
  }
  PhaseMask take(const TagPlan& tag, PhaseMask before, PhaseMask after) {
    for (std::size_t p = 0; p < phases_; ++p)
      if (((after & ~before) & phase_bit(p)) != 0) room_[p] -= tag.bytes;
    return after;
  }

  std::size_t phases_;
  std::vector<Bytes> room_;
};

}  // namespace

Overlap hide_copies(const MemoryPlan& plan, std::vector<TagOption>& chosen) {
  Overlap overlap;
  overlap.resumes.assign(plan.tags.size(), 0);
  overlap.backups.assign(plan.tags.size(), 0);
  std::vector<std::size_t> order(plan.tags.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return plan.tags[a].bytes > plan.tags[b].bytes;
  });
  LinkTime link(plan);
  Extension extension(plan, chosen);
  for (const std::size_t t : order) {
    const TagPlan& tag = plan.tags[t];
    if (chosen[t].cost.transfer_bytes == 0) continue;
    chosen[t].resident = extension.extend(link, tag, chosen[t].resident);
    const Copies copies = link.take(tag, chosen[t].resident);
    overlap.resumes[t] = copies.resumes;
    overlap.backups[t] = copies.backups;
    overlap.copy_seconds += copies.behind_seconds;
    overlap.visible_seconds += copies.visible_seconds;
  }
  return overlap;
}

}  // namespace neap::plan
