// Levels of detail over a long series: the highest and lowest value of any stretch in logarithmic
// time, however long the series is.
//
// Threads   read-only use from any.
// Cost      12 bytes a value on top of the series; a query touches at most 2 log2(n) entries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace neap::report {

class Envelope {
 public:
  Envelope() = default;
  /// `high` and `low` have one entry a leaf (the same span for a plain series) and are copied.
  Envelope(std::span<const std::uint64_t> high, std::span<const std::uint64_t> low);

  struct Range {
    std::size_t highest = 0;  ///< leaf with the highest value; the first one of several
    std::uint64_t high = 0;
    std::uint64_t low = 0;
  };
  /// Over leaves [begin, end), which is not empty and lies within the series.
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
  std::vector<std::vector<Node>> levels_;  ///< [0]: the leaves; each next one halves
};

}  // namespace neap::report
