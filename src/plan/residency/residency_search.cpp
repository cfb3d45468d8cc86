#include "plan/residency/residency_search.h"

#include <algorithm>
#include <numeric>

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

  // A lower bound for completions of this node: every remaining tag at its cheapest, plus the cost
  // of what the most crowded phase must still free, as a fractional knapsack.
  [[nodiscard]] MoveCost bound(std::size_t k, MoveCost cost) const {
    MoveCost low = cost;
    low += cheapest_[k];
    long double worst = 0;
    for (std::size_t p = 0; p < phases_; ++p) {
      const std::uint64_t here = used_[p] + at_cheapest_[k][p];
      if (here <= room_[p]) continue;
      auto excess = static_cast<long double>(here - room_[p]);
      long double extra = 0;
      for (const Leaver& l : leavers_[p]) {
        if (excess <= 0) break;
        if (l.tag < k) continue;
        const long double part = std::min(1.0L, excess / static_cast<long double>(l.bytes));
        extra += part * static_cast<long double>(l.extra);
        excess -= static_cast<long double>(l.bytes);
      }
      worst = std::max(worst, extra);
    }
    // Rounded down with a margin for rounding errors: a bound must never be too high.
    low.transfer_bytes += static_cast<std::uint64_t>(worst * (1 - 1e-15L));
    return low;
  }

  // Tags whose cheapest option keeps them in a phase, with the extra cost of leaving it; the least
  // cost per byte first.
  void find_leavers() {
    at_cheapest_.assign(order_.size() + 1, std::vector<std::uint64_t>(phases_, 0));
    leavers_.assign(phases_, {});
    for (std::size_t k = order_.size(); k-- > 0;) {
      const TagOption& cheapest = options_[k].front();
      for (std::size_t p = 0; p < phases_; ++p) {
        const bool stays = (cheapest.resident & phase_bit(p)) != 0;
        at_cheapest_[k][p] = at_cheapest_[k + 1][p] + (stays ? bytes_of(k) : 0);
        if (!stays || bytes_of(k) == 0) continue;
        std::uint64_t away = ~0ull;
        for (const TagOption& o : options_[k]) {
          if ((o.resident & phase_bit(p)) == 0) away = std::min(away, o.cost.transfer_bytes);
        }
        if (away != ~0ull)
          leavers_[p].push_back({k, bytes_of(k), away - cheapest.cost.transfer_bytes});
      }
    }
    for (std::vector<Leaver>& list : leavers_) {
      std::stable_sort(list.begin(), list.end(), [](const Leaver& a, const Leaver& b) {
        return static_cast<long double>(a.extra) * static_cast<long double>(b.bytes) <
               static_cast<long double>(b.extra) * static_cast<long double>(a.bytes);
      });
    }
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
  struct Leaver {
    std::size_t tag;  // index in order_
    std::uint64_t bytes, extra;
  };
  std::vector<std::vector<Leaver>> leavers_;             // one list per phase
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
