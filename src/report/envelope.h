// Levels of detail over a long series. Finds the highest and lowest value of any range in
// logarithmic time.
//
// Threads   read-only use from any.
//
// Cost      12 bytes per value in addition to the series; a query reads at most 2 log2(n) entries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace neap::report {

class Envelope {
 public:
  Envelope() = default;
  /// `high` and `low` have one entry per leaf and are copied. For a plain series pass the same span
  /// twice.
  Envelope(std::span<const std::uint64_t> high, std::span<const std::uint64_t> low);

  struct Range {
    std::size_t highest = 0;  ///< first leaf with the highest value
    std::uint64_t high = 0;
    std::uint64_t low = 0;
  };
  /// Searches leaves [begin, end). The range is not empty and within the series.
  [[nodiscard]] Range query(std::size_t begin, std::size_t end) const;
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Node {
    std::uint64_t high;
    std::uint64_t low;
    std::uint32_t highest;
  };
  static Node join(const Node& left, const Node& right);
  std::size_t size_ = 0;
  std::vector<std::vector<Node>> levels_;  ///< [0]: the leaves; each further level has half
};

}  // namespace neap::report
