#include "plan/residency/residency_search.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace neap::plan {
namespace {

// Branch and bound over tags in order of size.
class Search {
 public:
  Search(const MemoryPlan& plan, const TagChoices& choices, Bytes capacity, Bytes limit)
      : choices_(choices),
        phases_(plan.phases.size()),
        host_limit_(plan.host_budget.is_zero() ? ~0ull : plan.host_budget.count()),
        room_(phases_),
        best_cost_{limit.count(), 0} {
    for (std::size_t p = 0; p < phases_; ++p) {
      const Bytes taken = plan.phases[p].transient;
      feasible_ = feasible_ && (capacity.is_zero() || taken <= capacity);
      room_[p] = capacity.is_zero() ? ~0ull : saturating_sub(capacity, taken).count();
    }
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
    std::vector<TagOption> result(choices_.order.size());
    for (std::size_t k = 0; k < result.size(); ++k)
      result[choices_.order[k]] = choices_.options[k][best_[k]];
    return result;
  }

 private:
  void search() {
    if (!feasible_) return;
    used_.assign(phases_, 0);
    chosen_.assign(choices_.order.size(), 0);
    visit(0, MoveCost{}, 0);
  }

  void visit(std::size_t k, MoveCost cost, std::uint64_t host) {
    if (found_ && first_only_) return;
    if (host + choices_.least_host[k] > host_limit_) return;
    for (std::size_t p = 0; p < phases_; ++p) {
      if (used_[p] + choices_.least[k][p] > room_[p]) return;
    }
    if (k == choices_.order.size()) {
      if (cost < best_cost_) {
        found_ = true;
        best_cost_ = cost;
        best_ = chosen_;
      }
      return;
    }
    if (bound(k, cost) >= best_cost_) return;
    const std::uint64_t bytes = choices_.bytes[k];
    for (std::size_t o = 0; o < choices_.options[k].size(); ++o) {
      const TagOption& option = choices_.options[k][o];
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

  using Leavers = std::vector<TagChoices::Leaver>;

  // A lower bound for completions of this node: every remaining tag at its cheapest, plus the cost
  // of what the most crowded phase must still free.
  [[nodiscard]] MoveCost bound(std::size_t k, MoveCost cost) const {
    MoveCost low = cost;
    low += choices_.cheapest[k];
    low.transfer_bytes += extra_cost(k, choices_.copied);
    // With as few transfers, tags leave only if that needs none.
    if (low.transfer_bytes == cost.transfer_bytes + choices_.cheapest[k].transfer_bytes)
      low.remap += extra_cost(k, choices_.remapped);
    return low;
  }
  // The cost of the most crowded phase, as a fractional knapsack. It is rounded down with a margin
  // for rounding errors: a bound must never be too high.
  [[nodiscard]] std::uint64_t extra_cost(std::size_t k, const std::vector<Leavers>& leavers) const {
    double worst = 0;
    for (std::size_t p = 0; p < phases_; ++p) {
      const std::uint64_t here = used_[p] + choices_.at_cheapest[k][p];
      if (here <= room_[p]) continue;
      auto excess = static_cast<double>(here - room_[p]);
      double extra = 0;
      for (const TagChoices::Leaver& l : leavers[p]) {
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

  const TagChoices& choices_;
  std::size_t phases_;
  std::uint64_t host_limit_;
  bool feasible_ = true;
  std::vector<std::uint64_t> room_;  // for tags, per phase
  std::vector<std::uint64_t> used_;
  std::vector<std::size_t> chosen_, best_;
  MoveCost best_cost_;  // cost of the best solution; initially the limit
  bool found_ = false;
  bool first_only_ = false;  // any solution will do
};

}  // namespace

TagChoices::TagChoices(const MemoryPlan& plan) : order(plan.tags.size()) {
  const std::size_t phases = plan.phases.size();
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return plan.tags[a].bytes > plan.tags[b].bytes;
  });
  for (const std::size_t t : order) {
    options.push_back(tag_options(plan, plan.tags[t]));
    bytes.push_back(plan.tags[t].bytes.count());
  }
  least.assign(order.size() + 1, std::vector<std::uint64_t>(phases, 0));
  cheapest.assign(order.size() + 1, MoveCost{});
  least_host.assign(order.size() + 1, 0);
  for (std::size_t k = order.size(); k-- > 0;) {
    for (std::size_t p = 0; p < phases; ++p) {
      const bool always =
          std::all_of(options[k].begin(), options[k].end(),
                      [&](const TagOption& o) { return (o.resident & phase_bit(p)) != 0; });
      least[k][p] = least[k + 1][p] + (always ? bytes[k] : 0);
    }
    cheapest[k] = cheapest[k + 1];
    cheapest[k] += options[k].front().cost;
    std::uint64_t host = ~0ull;
    for (const TagOption& o : options[k]) host = std::min(host, o.host.count());
    least_host[k] = least_host[k + 1] + host;
  }
  find_leavers(phases);
}

void TagChoices::find_leavers(std::size_t phases) {
  at_cheapest.assign(order.size() + 1, std::vector<std::uint64_t>(phases, 0));
  copied.assign(phases, {});
  remapped.assign(phases, {});
  for (std::size_t k = order.size(); k-- > 0;) {
    const TagOption& front = options[k].front();
    for (std::size_t p = 0; p < phases; ++p) {
      const bool stays = (front.resident & phase_bit(p)) != 0;
      at_cheapest[k][p] = at_cheapest[k + 1][p] + (stays ? bytes[k] : 0);
      if (stays && bytes[k] > 0) add_leaver(k, p);
    }
  }
  for (std::vector<std::vector<Leaver>>* const lists : {&copied, &remapped})
    for (std::vector<Leaver>& list : *lists)
      std::stable_sort(list.begin(), list.end(), [](const Leaver& a, const Leaver& b) {
        return a.per_byte() < b.per_byte();
      });
}

void TagChoices::add_leaver(std::size_t k, std::size_t phase) {
  const MoveCost stays = options[k].front().cost;
  std::optional<MoveCost> away;
  for (const TagOption& o : options[k])
    if ((o.resident & phase_bit(phase)) == 0 && (!away || o.cost < *away)) away = o.cost;
  if (!away) return;
  const auto size = static_cast<double>(bytes[k]);
  const std::uint64_t copies = away->transfer_bytes - stays.transfer_bytes;
  copied[phase].push_back({k, size, static_cast<double>(copies)});
  if (copies == 0)
    remapped[phase].push_back({k, size, static_cast<double>(away->remap - stays.remap)});
}

std::optional<std::vector<TagOption>> search_residency(const MemoryPlan& plan,
                                                       const TagChoices& choices, Bytes capacity,
                                                       Bytes limit) {
  return Search(plan, choices, capacity, limit).run();
}

bool any_residency_fits(const MemoryPlan& plan, const TagChoices& choices, Bytes capacity) {
  return Search(plan, choices, capacity, Bytes(~0ull)).fits();
}

}  // namespace neap::plan
