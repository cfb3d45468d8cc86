#include "spec/model/unit_slices.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace neap::spec {
namespace {

// The elements that each rank lacks of its share of `total`.
std::vector<double> lacks(const std::vector<std::int64_t>& sums, std::int64_t total) {
  const double share = static_cast<double>(total) / static_cast<double>(sums.size());
  std::vector<double> out;
  out.reserve(sums.size());
  for (const std::int64_t sum : sums)
    out.push_back(std::max(0.0, share - static_cast<double>(sum)));
  return out;
}

// Divides `elements` in proportion to `wanted`. Each cut is at the nearest end of a tile; the last
// tile may be short.
std::vector<std::int64_t> cut(std::int64_t elements, std::int64_t tile,
                              const std::vector<double>& wanted) {
  const double all = std::accumulate(wanted.begin(), wanted.end(), 0.0);
  const std::int64_t full = elements / tile * tile;
  const double in_last = static_cast<double>(full + elements) / 2;
  std::vector<std::int64_t> out;
  double reached = 0;
  std::int64_t first = 0;
  for (const double part : wanted) {
    reached += part / all * static_cast<double>(elements);
    const std::int64_t end =
        reached > in_last ? elements
                          : std::min(full, std::lround(reached / static_cast<double>(tile)) * tile);
    out.push_back(end - first);
    first = end;
  }
  return out;
}

}  // namespace

// A tied embedding comes first, then units from largest to smallest. An uncut unit goes to the rank
// with the fewest elements so far. For other units each rank gets what it lacks of its share so
// far, rounded to a tile.
UnitSlices::UnitSlices(const std::vector<FlatUnit>& units, std::int64_t ranks, std::int64_t tile,
                       bool cuts)
    : counts_(units.size(), std::vector<std::int64_t>(static_cast<std::size_t>(ranks))) {
  std::vector<std::size_t> order(units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const bool has_head = std::any_of(units.begin(), units.end(), [](const FlatUnit& unit) {
    return unit.find(Module::kLmHead) != nullptr;
  });
  const auto is_later = [&](std::size_t u) {
    return has_head || units[u].find(Module::kTokenEmbedding) == nullptr;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(is_later(a), -units[a].elements) <
           std::tuple(is_later(b), -units[b].elements);
  });
  std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks));
  std::int64_t total = 0;
  for (const std::size_t u : order) {
    const std::int64_t elements = units[u].elements;
    total += elements;
    if (cuts && elements > tile) {
      counts_[u] = cut(elements, tile, lacks(sums, total));
    } else {
      const auto least = std::min_element(sums.begin(), sums.end()) - sums.begin();
      counts_[u][static_cast<std::size_t>(least)] = elements;
    }
    for (std::size_t r = 0; r < sums.size(); ++r) sums[r] += counts_[u][r];
  }
  slice_elements_ = *std::max_element(sums.begin(), sums.end());
}

UnitSlices::Range UnitSlices::range(std::size_t unit, std::int64_t rank) const {
  const std::vector<std::int64_t>& counts = counts_.at(unit);
  return {std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0}),
          counts[static_cast<std::size_t>(rank)]};
}

std::int64_t UnitSlices::slice_first(std::size_t unit, std::int64_t rank) const {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < unit; ++u) sum += counts_[u][static_cast<std::size_t>(rank)];
  return sum;
}

UnitSlices even_slices(const std::vector<FlatUnit>& units, std::int64_t ranks) {
  return {units, ranks, kParameterAlignment, /*cuts=*/true};
}

}  // namespace neap::spec
