#include "plan/phase_schedule.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/format.h"

namespace neap::plan {
namespace {

using Mask = std::uint64_t;
constexpr Mask bit(std::size_t p) {
  return Mask{1} << p;
}

// Maximal runs of phases, round the cycle, that do not need the tag.
std::vector<std::vector<std::size_t>> gaps_of(const TagPlan& tag) {
  const std::size_t n = tag.need.size();
  std::size_t first = 0;
  while (first < n && tag.need[first] != Need::kNeed) ++first;
  std::vector<std::vector<std::size_t>> gaps;
  if (first == n) {  // nobody needs it: one gap that never ends
    gaps.emplace_back(n);
    std::iota(gaps.back().begin(), gaps.back().end(), std::size_t{0});
    return gaps;
  }
  bool in_gap = false;
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t p = (first + k) % n;
    if (tag.need[p] == Need::kNeed) {
      in_gap = false;
      continue;
    }
    if (!in_gap) gaps.emplace_back();
    gaps.back().push_back(p);
    in_gap = true;
  }
  return gaps;
}

// Is the tag written in the phases after `from` and before `to`, round the cycle?
bool written_between(const TagPlan& tag, std::size_t from, std::size_t to) {
  const std::size_t n = tag.need.size();
  for (std::size_t k = 1; k <= n; ++k) {
    const std::size_t p = (from + k) % n;
    if (p == to) return false;
    if (tag.write[p]) return true;
  }
  return false;
}

bool beats(const TagOption& a, const TagOption& b) {
  return (a.resident & ~b.resident) == 0 && a.cost <= b.cost && a.host <= b.host;
}

TagOption make_option(const TagPlan& tag, const std::vector<std::vector<std::size_t>>& gaps,
                      Mask away) {
  const std::size_t n = tag.need.size();
  TagOption option;
  option.resident = n == 64 ? ~Mask{0} : bit(n) - 1;
  std::vector<std::size_t> left;  // gaps that it leaves with contents worth keeping
  for (std::size_t g = 0; g < gaps.size(); ++g) {
    if ((away & bit(g)) == 0) continue;
    for (const std::size_t p : gaps[g]) option.resident &= ~bit(p);
    if (gaps[g].size() == n) continue;  // away for good: nothing ever moves
    option.cost.remap += tag.bytes.count();
    if (tag.contents != Contents::kScratch) left.push_back(g);
  }
  for (std::size_t k = 0; k < left.size(); ++k) {
    const auto& gap = gaps[left[k]];
    const auto& before = gaps[left[(k + left.size() - 1) % left.size()]];
    option.cost.transfer_bytes += tag.bytes.count();  // the way back
    // The copy that the last leave made is still right if nobody wrote since.
    if (written_between(tag, before.back(), gap.front())) {
      option.cost.transfer_bytes += tag.bytes.count();
      option.copied_out |= bit(gap.front());
    }
  }
  if (!left.empty()) option.host = tag.bytes;
  return option;
}

// Branch and bound over tags in order of size.
class Search {
 public:
  Search(const MemoryPlan& plan, Bytes capacity)
      : plan_(plan),
        phases_(plan.phases.size()),
        host_limit_(plan.host_budget.is_zero() ? ~0ull : plan.host_budget.count()),
        room_(phases_) {
    for (std::size_t p = 0; p < phases_; ++p) {
      const Bytes transient = plan.phases[p].transient;
      feasible_ = feasible_ && (capacity.is_zero() || transient <= capacity);
      room_[p] = capacity.is_zero() ? ~0ull : saturating_sub(capacity, transient).count();
    }
    order_.resize(plan.tags.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return plan.tags[a].bytes > plan.tags[b].bytes;
    });
    for (const std::size_t t : order_) options_.push_back(tag_options(plan.tags[t]));
    // Of the tags from k on: the least bytes of each phase, the least cost, the least host memory.
    least_.assign(order_.size() + 1, std::vector<std::uint64_t>(phases_, 0));
    cheapest_.assign(order_.size() + 1, MoveCost{});
    least_host_.assign(order_.size() + 1, 0);
    for (std::size_t k = order_.size(); k-- > 0;) {
      const std::uint64_t bytes = bytes_of(k);
      for (std::size_t p = 0; p < phases_; ++p) {
        const bool always =
            std::all_of(options_[k].begin(), options_[k].end(),
                        [&](const TagOption& o) { return (o.resident & bit(p)) != 0; });
        least_[k][p] = least_[k + 1][p] + (always ? bytes : 0);
      }
      cheapest_[k] = cheapest_[k + 1];
      cheapest_[k] += options_[k].front().cost;
      std::uint64_t host = ~0ull;
      for (const TagOption& o : options_[k]) host = std::min(host, o.host.count());
      least_host_[k] = least_host_[k + 1] + host;
    }
  }

  /// The options chosen, one a tag in the plan's order; empty when nothing fits.
  std::optional<std::vector<TagOption>> run() {
    if (!feasible_) return std::nullopt;
    used_.assign(phases_, 0);
    chosen_.assign(order_.size(), 0);
    visit(0, MoveCost{}, 0);
    if (!found_) return std::nullopt;
    std::vector<TagOption> result(order_.size());
    for (std::size_t k = 0; k < order_.size(); ++k) result[order_[k]] = options_[k][best_[k]];
    return result;
  }

 private:
  [[nodiscard]] std::uint64_t bytes_of(std::size_t k) const {
    return plan_.tags[order_[k]].bytes.count();
  }

  void visit(std::size_t k, MoveCost cost, std::uint64_t host) {
    if (host + least_host_[k] > host_limit_) return;
    for (std::size_t p = 0; p < phases_; ++p) {
      if (used_[p] + least_[k][p] > room_[p]) return;
    }
    if (k == order_.size()) {
      if (!found_ || cost < best_cost_) {
        found_ = true;
        best_cost_ = cost;
        best_ = chosen_;
      }
      return;
    }
    if (found_ && bound(k, cost) >= best_cost_) return;
    const std::uint64_t bytes = bytes_of(k);
    for (std::size_t o = 0; o < options_[k].size(); ++o) {
      const TagOption& option = options_[k][o];
      chosen_[k] = o;
      for (std::size_t p = 0; p < phases_; ++p) used_[p] += (option.resident & bit(p)) ? bytes : 0;
      MoveCost next = cost;
      next += option.cost;
      visit(k + 1, next, host + option.host.count());
      for (std::size_t p = 0; p < phases_; ++p) used_[p] -= (option.resident & bit(p)) ? bytes : 0;
    }
  }

  // No completion of this node costs less: every remaining tag at its cheapest, and on top what the
  // most crowded phase must still shed, as a fractional knapsack.
  [[nodiscard]] MoveCost bound(std::size_t k, MoveCost cost) const {
    MoveCost low = cost;
    low += cheapest_[k];
    struct Leaver {
      std::uint64_t bytes, extra;
    };
    long double worst = 0;
    std::vector<Leaver> leavers;
    for (std::size_t p = 0; p < phases_; ++p) {
      std::uint64_t here = used_[p];
      leavers.clear();
      for (std::size_t j = k; j < order_.size(); ++j) {
        const TagOption& cheapest = options_[j].front();
        if ((cheapest.resident & bit(p)) == 0) continue;
        here += bytes_of(j);
        std::uint64_t away = ~0ull;
        for (const TagOption& o : options_[j]) {
          if ((o.resident & bit(p)) == 0) away = std::min(away, o.cost.transfer_bytes);
        }
        if (away != ~0ull) leavers.push_back({bytes_of(j), away - cheapest.cost.transfer_bytes});
      }
      if (here <= room_[p]) continue;
      auto excess = static_cast<long double>(here - room_[p]);
      std::sort(leavers.begin(), leavers.end(), [](const Leaver& a, const Leaver& b) {
        return static_cast<long double>(a.extra) * static_cast<long double>(b.bytes) <
               static_cast<long double>(b.extra) * static_cast<long double>(a.bytes);
      });
      long double extra = 0;
      for (const Leaver& l : leavers) {
        if (excess <= 0 || l.bytes == 0) break;
        const long double part = std::min(1.0L, excess / static_cast<long double>(l.bytes));
        extra += part * static_cast<long double>(l.extra);
        excess -= static_cast<long double>(l.bytes);
      }
      worst = std::max(worst, extra);
    }
    // Rounded down with a margin for the arithmetic: a bound may be low, never high.
    low.transfer_bytes += static_cast<std::uint64_t>(worst * (1 - 1e-15L));
    return low;
  }

  const MemoryPlan& plan_;
  std::size_t phases_;
  std::uint64_t host_limit_;
  bool feasible_ = true;
  std::vector<std::uint64_t> room_;  // for tags, one a phase
  std::vector<std::size_t> order_;   // tags, largest first
  std::vector<std::vector<TagOption>> options_;
  std::vector<std::vector<std::uint64_t>> least_;
  std::vector<MoveCost> cheapest_;
  std::vector<std::uint64_t> least_host_;
  std::vector<std::uint64_t> used_;
  std::vector<std::size_t> chosen_, best_;
  MoveCost best_cost_;
  bool found_ = false;
};

// Moves at each phase's start, from what was resident in the phase before it, round the cycle.
// What leaves goes first: no boundary holds more than the phase that follows it or the tags that
// were there before.
void write_schedule(MemoryPlan& plan, const std::vector<TagOption>& chosen) {
  const std::size_t phases = plan.phases.size();
  plan.schedule.assign(phases, {});
  plan.peak = plan.all_resident = plan.moved_per_step = plan.host_bytes = Bytes();
  Bytes largest_transient;
  for (std::size_t p = 0; p < phases; ++p) {
    PhaseSchedule& s = plan.schedule[p];
    const std::size_t before = (p + phases - 1) % phases;
    std::vector<Move> in;
    for (std::size_t t = 0; t < plan.tags.size(); ++t) {
      const TagPlan& tag = plan.tags[t];
      const bool now = (chosen[t].resident & bit(p)) != 0;
      const bool was = (chosen[t].resident & bit(before)) != 0;
      s.resident.push_back(now);
      if (now) s.persistent += tag.bytes;
      const bool keeps = tag.contents != Contents::kScratch;
      if (was && !now) {
        const bool copies = (chosen[t].copied_out & bit(p)) != 0;
        s.moves.push_back({Move::Kind::kPause, tag.tag,
                           keeps ? arena::Policy::kHost : arena::Policy::kDiscard, tag.bytes,
                           copies});
      } else if (!was && now) {
        in.push_back({Move::Kind::kResume, tag.tag,
                      keeps ? arena::Policy::kHost : arena::Policy::kDiscard, tag.bytes, keeps});
      }
    }
    s.moves.insert(s.moves.end(), in.begin(), in.end());
    for (const Move& move : s.moves) plan.moved_per_step += move.copies ? move.bytes : Bytes();
    s.peak = s.persistent + plan.phases[p].transient;
    plan.peak = std::max(plan.peak, s.peak);
    largest_transient = std::max(largest_transient, plan.phases[p].transient);
  }
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    plan.all_resident += plan.tags[t].bytes;
    plan.host_bytes += chosen[t].host;
  }
  plan.all_resident += largest_transient;
}

}  // namespace

std::vector<TagOption> tag_options(const TagPlan& tag) {
  const auto gaps = gaps_of(tag);
  Mask forced = 0;
  for (std::size_t g = 0; g < gaps.size(); ++g) {
    const bool drops = std::any_of(gaps[g].begin(), gaps[g].end(),
                                   [&](std::size_t p) { return tag.need[p] == Need::kDrop; });
    if (drops) forced |= bit(g);
  }
  std::vector<TagOption> all;
  for (Mask away = 0; away < bit(gaps.size()); ++away) {
    if ((away & forced) == forced) all.push_back(make_option(tag, gaps, away));
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
    Bytes here = plan.phases[p].transient;
    Bytes all = plan.phases[p].transient;
    for (const TagPlan& tag : plan.tags) {
      all += tag.bytes;
      if (tag.need[p] == Need::kNeed) here += tag.bytes;
    }
    low = std::max(low, here);
    high = std::max(high, all);
  }
  if (Search(plan, low).run()) return low;
  // The host budget binds: fitting is monotone in the capacity.
  while (high - low > 1_B) {
    const Bytes middle = low + (high - low) / 2;
    (Search(plan, middle).run() ? high : low) = middle;
  }
  return high;
}

Status solve_residency(MemoryPlan& plan, const std::string& mode) {
  if (plan.phases.empty() || plan.phases.size() > 64)
    return {ErrorCode::kInvalidArgument,
            format("A plan has 1 to 64 phases, not {}", plan.phases.size())};
  for (const TagPlan& tag : plan.tags) {
    if (tag.need.size() != plan.phases.size() || tag.write.size() != plan.phases.size())
      return {ErrorCode::kInvalidArgument,
              format("Tag \"{}\" does not say what each phase needs of it", tag.tag)};
    const bool drops = std::count(tag.need.begin(), tag.need.end(), Need::kDrop) > 0;
    if (drops && tag.contents != Contents::kScratch)
      return {ErrorCode::kInvalidArgument,
              format("Tag \"{}\" is dropped but its contents are worth keeping", tag.tag)};
  }
  if (mode == "all") {
    TagOption stays;
    stays.resident = plan.phases.size() == 64 ? ~Mask{0} : bit(plan.phases.size()) - 1;
    write_schedule(plan, std::vector<TagOption>(plan.tags.size(), stays));
    return {};
  }
  if (mode != "auto")
    return {ErrorCode::kInvalidArgument,
            format("memory.residency is \"{}\"; it can be \"auto\" or \"all\"", mode)};
  const auto chosen = Search(plan, plan.capacity).run();
  if (!chosen) {
    const Bytes least = min_capacity(plan);
    // The phase that sets it, for the message.
    std::size_t worst = 0;
    Bytes worst_bytes;
    for (std::size_t p = 0; p < plan.phases.size(); ++p) {
      Bytes here = plan.phases[p].transient;
      for (const TagPlan& tag : plan.tags) {
        if (tag.need[p] == Need::kNeed) here += tag.bytes;
      }
      if (here > worst_bytes) {
        worst = p;
        worst_bytes = here;
      }
    }
    std::string parts;
    for (const TagPlan& tag : plan.tags) {
      if (tag.need[worst] == Need::kNeed) parts += format("{} {}, ", tag.tag, tag.bytes);
    }
    std::string host;
    if (worst_bytes <= plan.capacity) host = format(" with a host budget of {}", plan.host_budget);
    return {ErrorCode::kDoesNotFit,
            format("The job does not fit under {}{}: the least capacity is {}. Phase \"{}\" needs "
                   "{}: {}transient {}",
                   plan.capacity, host, least, plan.phases[worst].name, worst_bytes, parts,
                   plan.phases[worst].transient)};
  }
  write_schedule(plan, *chosen);
  return {};
}

}  // namespace neap::plan
