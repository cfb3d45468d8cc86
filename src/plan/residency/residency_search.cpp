#include "plan/residency/residency_search.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace neap::plan {
namespace {

// Branch and bound over tags in order of size.
class Search {
 public:
  Search(const MemoryPlan& plan, Bytes capacity, Bytes limit)
      : plan_(plan),
        phases_(plan.phases.size()),
        host_limit_(plan.host_budget.is_zero() ? ~0ull : plan.host_budget.count()),
        room_(phases_),
        best_cost_{limit.count(), 0} {
    for (std::size_t p = 0; p < phases_; ++p) {
      const Bytes taken = plan.phases[p].transient;
      feasible_ = feasible_ && (capacity.is_zero() || taken <= capacity);
      room_[p] = capacity.is_zero() ? ~0ull : saturating_sub(capacity, taken).count();
    }
    order_.resize(plan.tags.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return plan.tags[a].bytes > plan.tags[b].bytes;
    });
    for (const std::size_t t : order_) options_.push_back(tag_options(plan, plan.tags[t]));
    // For the tags from k on: the least bytes in each phase, the least cost, and the least host
    // memory.
    least_.assign(order_.size() + 1, std::vector<std::uint64_t>(phases_, 0));
    cheapest_.assign(order_.size() + 1, MoveCost{});
    least_host_.assign(order_.size() + 1, 0);
    for (std::size_t k = order_.size(); k-- > 0;) {
      const std::uint64_t bytes = bytes_of(k);
      for (std::size_t p = 0; p < phases_; ++p) {
        const bool always =
            std::all_of(options_[k].begin(), options_[k].end(),
                        [&](const TagOption& o) { return (o.resident & phase_bit(p)) != 0; });
        least_[k][p] = least_[k + 1][p] + (always ? bytes : 0);
      }
      cheapest_[k] = cheapest_[k + 1];
      cheapest_[k] += options_[k].front().cost;
      std::uint64_t host = ~0ull;
      for (const TagOption& o : options_[k]) host = std::min(host, o.host.count());
      least_host_[k] = least_host_[k + 1] + host;
    }
    find_leavers();
  }

  /// Whether anything fits.
  bool fits() {
    first_only_ = true;
    search();
    return found_;
  }

  /// The chosen options, one per tag in the plan's order; nullopt if nothing fits.
  std::optional<std::vector<TagOption>> run() {
    search();
    if (!found_) return std::nullopt;
    std::vector<TagOption> result(order_.size());
    for (std::size_t k = 0; k < order_.size(); ++k) result[order_[k]] = options_[k][best_[k]];
    return result;
  }

 private:
  void search() {
    if (!feasible_) return;
    used_.assign(phases_, 0);
    chosen_.assign(order_.size(), 0);
    visit(0, MoveCost{}, 0);
  }

  [[nodiscard]] std::uint64_t bytes_of(std::size_t k) const {
    return plan_.tags[order_[k]].bytes.count();
  }

  void visit(std::size_t k, MoveCost cost, std::uint64_t host) {
    if (found_ && first_only_) return;
    if (host + least_host_[k] > host_limit_) return;
    for (std::size_t p = 0; p < phases_; ++p) {
      if (used_[p] + least_[k][p] > room_[p]) return;
    }
    if (k == order_.size()) {
      if (cost < best_cost_) {
        found_ = true;
        best_cost_ = cost;
        best_ = chosen_;
      }
      return;
    }
    if (bound(k, cost) >= best_cost_) return;
    const std::uint64_t bytes = bytes_of(k);
    for (std::size_t o = 0; o < options_[k].size(); ++o) {
      const TagOption& option = options_[k][o];
      chosen_[k] = o;
      for (std::size_t p = 0; p < phases_; ++p)
        used_[p] += (option.resident & phase_bit(p)) ? bytes : 0;
      MoveCost next = cost;
      next += option.cost;
      visit(k + 1, next, host + option.host.count());
      for (std::size_t p = 0; p < phases_; ++p)
        used_[p] -= (option.resident & phase_bit(p)) ? bytes : 0;
    }
  }

  // A tag whose cheapest option keeps it in a phase, and the extra cost of leaving it.
  struct Leaver {
    std::size_t tag;  // index in order_
    double bytes, extra;
    [[nodiscard]] double per_byte() const { return extra / bytes; }
  };
  using Leavers = std::vector<Leaver>;

  // A lower bound for completions of this node: every remaining tag at its cheapest, plus the cost
  // of what the most crowded phase must still free.
  [[nodiscard]] MoveCost bound(std::size_t k, MoveCost cost) const {
    MoveCost low = cost;
    low += cheapest_[k];
    low.transfer_bytes += extra_cost(k, copied_);
    // With as few transfers, tags leave only if that needs none.
    if (low.transfer_bytes == cost.transfer_bytes + cheapest_[k].transfer_bytes)
      low.remap += extra_cost(k, remapped_);
    return low;
  }
  // The cost of the most crowded phase, as a fractional knapsack. It is rounded down with a margin
  // for rounding errors: a bound must never be too high.
  [[nodiscard]] std::uint64_t extra_cost(std::size_t k, const std::vector<Leavers>& leavers) const {
    double worst = 0;
    for (std::size_t p = 0; p < phases_; ++p) {
      const std::uint64_t here = used_[p] + at_cheapest_[k][p];
      if (here <= room_[p]) continue;
      auto excess = static_cast<double>(here - room_[p]);
      double extra = 0;
      for (const Leaver& l : leavers[p]) {
        if (l.tag < k) continue;
        if (excess <= l.bytes) {
          extra += excess * l.per_byte();
          break;
        }
        extra += l.extra;
        excess -= l.bytes;
      }
      worst = std::max(worst, extra);
    }
    return static_cast<std::uint64_t>(worst * (1 - 1e-12));
  }

  void find_leavers() {
    at_cheapest_.assign(order_.size() + 1, std::vector<std::uint64_t>(phases_, 0));
    copied_.assign(phases_, {});
    remapped_.assign(phases_, {});
    for (std::size_t k = order_.size(); k-- > 0;) {
      const TagOption& cheapest = options_[k].front();
      const auto bytes = static_cast<double>(bytes_of(k));
      for (std::size_t p = 0; p < phases_; ++p) {
        const bool stays = (cheapest.resident & phase_bit(p)) != 0;
        at_cheapest_[k][p] = at_cheapest_[k + 1][p] + (stays ? bytes_of(k) : 0);
        if (!stays || bytes_of(k) == 0) continue;
        std::optional<MoveCost> away;
        for (const TagOption& o : options_[k])
          if ((o.resident & phase_bit(p)) == 0 && (!away || o.cost < *away)) away = o.cost;
        if (!away) continue;
        const std::uint64_t copied = away->transfer_bytes - cheapest.cost.transfer_bytes;
        copied_[p].push_back({k, bytes, static_cast<double>(copied)});
        if (copied == 0)
          remapped_[p].push_back(
              {k, bytes, static_cast<double>(away->remap - cheapest.cost.remap)});
      }
    }
    for (std::vector<Leavers>* const lists : {&copied_, &remapped_})
      for (Leavers& list : *lists)
        std::stable_sort(list.begin(), list.end(), [](const Leaver& a, const Leaver& b) {
          return a.per_byte() < b.per_byte();
        });
  }

  const MemoryPlan& plan_;
  std::size_t phases_;
  std::uint64_t host_limit_;
  bool feasible_ = true;
  std::vector<std::uint64_t> room_;  // for tags, per phase
  std::vector<std::size_t> order_;   // tags, largest first
  std::vector<std::vector<TagOption>> options_;
  std::vector<std::vector<std::uint64_t>> least_;
  std::vector<MoveCost> cheapest_;
  std::vector<std::uint64_t> least_host_;
  // Per phase, the least cost per byte first: extra transfers of leavers, and extra bytes that are
  // mapped again of those without extra transfers.
  std::vector<Leavers> copied_, remapped_;
  std::vector<std::vector<std::uint64_t>> at_cheapest_;  // for the tags from k on, per phase
  std::vector<std::uint64_t> used_;
  std::vector<std::size_t> chosen_, best_;
  MoveCost best_cost_;  // cost of the best solution; initially the limit
  bool found_ = false;
  bool first_only_ = false;  // any solution will do
};

}  // namespace

std::optional<std::vector<TagOption>> search_residency(const MemoryPlan& plan, Bytes capacity,
                                                       Bytes limit) {
  return Search(plan, capacity, limit).run();
}

bool any_residency_fits(const MemoryPlan& plan, Bytes capacity) {
  return Search(plan, capacity, Bytes(~0ull)).fits();
}

}  // namespace neap::plan
