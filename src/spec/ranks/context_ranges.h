// Ranges of queries and keys that one attention kernel call computes under context parallelism
// (spec/ranks/context_parallel.h). Queries and keys of several sequences lie one after another. Queries
// of a range attend only to keys of the same range.
//
// Ranges must be contiguous for the kernel. So parts to skip are ranges of queries without keys, or
// of keys without queries; nothing is copied. Padding rows may attend to some keys or none. Their
// results are not used, and their gradients are zero.
//
// Threads   values and stateless functions.
// Failure   none.
// Cost      proportional to the sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/ranks/context_parallel.h"

namespace neap::spec {

struct AttentionRanges {
  std::vector<std::int64_t> queries, keys;  ///< rows of each range
  /// Causal: a range's queries belong to its last keys. Otherwise queries attend to all keys of the
  /// range.
  bool causal = true;
  void add(std::int64_t of_queries, std::int64_t of_keys) {
    queries.push_back(of_queries);
    keys.push_back(of_keys);
  }
  /// Twice the number of pairs of a query and a key that it attends to.
  [[nodiscard]] double pairs() const;
};

/// The maximum number of ranges per sequence in one call.
constexpr std::int64_t kRangesOfSequence = 3;

/// For a rank that has gathered the keys of all tokens in order. `which` selects its first (0) or
/// second (1) token range of these sequences. The call gets all rows of the rank; those of the
/// other token range have no keys.
[[nodiscard]] AttentionRanges gathered_ranges(std::span<const std::int64_t> lengths,
                                              const ContextShard& shard, std::size_t which);
/// For a rank that holds the keys of rank `from`, which may be itself.
[[nodiscard]] AttentionRanges ring_ranges(std::span<const std::int64_t> lengths,
                                          const ContextShard& shard, std::int64_t from);

/// The rank whose keys arrive in a round of ring attention: first this rank's own, then those of
/// the ranks before it.
[[nodiscard]] inline std::int64_t rank_of_round(const ContextShard& shard, std::int64_t round) {
  return (shard.rank + shard.ranks - round) % shard.ranks;
}

}  // namespace neap::spec
