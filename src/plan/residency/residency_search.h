// Chooses an option for every tag, with the least transfer such that each phase fits.
//
// It is a branch and bound over tags, largest first. A node's bound is the most expensive phase's
// fractional knapsack of bytes that must still be offloaded. The result is exact, because the bound
// never exceeds the true cost; tests compare it with enumeration.
//
// Threads   stateless functions.
// Cost      microseconds to milliseconds for a job's plan.
#pragma once

#include <optional>
#include <vector>

#include "plan/residency/tag_options.h"

namespace neap::plan {

/// The options of a plan's tags, and bounds from them. They hold while only the temporaries of
/// phases and the capacity change.
struct TagChoices {
  explicit TagChoices(const MemoryPlan& plan);
  /// A tag whose cheapest option keeps it in a phase, and the extra cost of leaving it.
  struct Leaver {
    std::size_t tag;  ///< index in `order`
    double bytes, extra;
    [[nodiscard]] double per_byte() const { return extra / bytes; }
  };
  std::vector<std::size_t> order;  ///< tags, largest first
  // In that order:
  std::vector<std::vector<TagOption>> options;
  std::vector<std::uint64_t> bytes;
  // For the tags from each one on: the least bytes in each phase, the least cost, the least host
  // memory, and the bytes in each phase at the least cost.
  std::vector<std::vector<std::uint64_t>> least;
  std::vector<MoveCost> cheapest;
  std::vector<std::uint64_t> least_host;
  std::vector<std::vector<std::uint64_t>> at_cheapest;
  /// Per phase, the least cost per byte first: extra transfers of leavers, and extra bytes that are
  /// mapped again of those without extra transfers.
  std::vector<std::vector<Leaver>> copied, remapped;

 private:
  void find_leavers(std::size_t phases);
  void add_leaver(std::size_t k, std::size_t phase);
};

/// The chosen options, one per tag in the plan's order. nullopt if nothing fits `capacity` (zero:
/// unlimited) and the plan's host budget with less than `limit` bytes over the link.
[[nodiscard]] std::optional<std::vector<TagOption>> search_residency(const MemoryPlan& plan,
                                                                     const TagChoices& choices,
                                                                     Bytes capacity, Bytes limit);

/// Whether any choice fits, at any cost.
[[nodiscard]] bool any_residency_fits(const MemoryPlan& plan, const TagChoices& choices,
                                      Bytes capacity);

}  // namespace neap::plan
