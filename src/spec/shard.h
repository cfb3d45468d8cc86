// How a parameter or a job is divided between ranks. One rank holds everything today (count 1).
#pragma once

#include <cstdint>

namespace neap::spec {

/// One rank's piece of a parameter: `index` of `count` equal pieces along dimension `axis`, of which
/// the last `padding` rows of the last piece are not in the checkpoint.
struct Shard {
  std::int64_t axis = 0;
  std::int64_t index = 0;
  std::int64_t count = 1;
  std::int64_t padding = 0;

  [[nodiscard]] bool whole() const { return count == 1; }
  /// Piece `index` of `count` of a dimension of `size`, with the padding that makes pieces equal.
  [[nodiscard]] static constexpr Shard of(std::int64_t size, std::int64_t axis, std::int64_t index,
                                          std::int64_t count) {
    return {axis, index, count, (count - size % count) % count};
  }
  /// Rows of one piece of a dimension of `size`, padding included.
  [[nodiscard]] constexpr std::int64_t rows(std::int64_t size) const {
    return (size + padding) / count;
  }
};

/// Ranks along each way of dividing a job; their product is the number of ranks.
struct ParallelSpec {
  std::int64_t data = 1;      ///< replicas that share a batch
  std::int64_t tensor = 1;    ///< pieces of each matrix
  std::int64_t sequence = 1;  ///< pieces of each sequence
  std::int64_t pipeline = 1;  ///< runs of consecutive blocks

  [[nodiscard]] constexpr std::int64_t ranks() const { return data * tensor * sequence * pipeline; }
};

}  // namespace neap::spec
