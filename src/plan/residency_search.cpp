#include "plan/residency_search.h"

#include <algorithm>
#include <numeric>

namespace neap::plan {
namespace {

// Branch and bound over tags in order of size.
class Search {
 public:
  Search(const MemoryPlan& plan, Bytes capacity)
      : plan_(plan),
        phases_(plan.phases.size()),
        host_limit_(plan.host_budget.is_zero() ? ~0ull : plan.host_budget.count()),
        room_(phases_) {
    for (std::size_t p = 0; p < phases_; ++p) {
      const Bytes taken =
          plan.phases[p].transient + plan.phases[p].window + plan.phases[p].headroom;
      feasible_ = feasible_ && (capacity.is_zero() || taken <= capacity);
      room_[p] = capacity.is_zero() ? ~0ull : saturating_sub(capacity, taken).count();
    }
    order_.resize(plan.tags.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return plan.tags[a].bytes > plan.tags[b].bytes;
    });
    for (const std::size_t t : order_) options_.push_back(tag_options(plan, plan.tags[t]));
    // Of the tags from k on: the least bytes of each phase, the least cost, the least host memory.
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
      for (std::size_t p = 0; p < phases_; ++p)
        used_[p] += (option.resident & phase_bit(p)) ? bytes : 0;
      MoveCost next = cost;
      next += option.cost;
      visit(k + 1, next, host + option.host.count());
      for (std::size_t p = 0; p < phases_; ++p)
        used_[p] -= (option.resident & phase_bit(p)) ? bytes : 0;
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
        if ((cheapest.resident & phase_bit(p)) == 0) continue;
        here += bytes_of(j);
        std::uint64_t away = ~0ull;
        for (const TagOption& o : options_[j]) {
          if ((o.resident & phase_bit(p)) == 0) away = std::min(away, o.cost.transfer_bytes);
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

}  // namespace

std::optional<std::vector<TagOption>> search_residency(const MemoryPlan& plan, Bytes capacity) {
  return Search(plan, capacity).run();
}

}  // namespace neap::plan
