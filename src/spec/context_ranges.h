// What a kernel computes in one call where ranks divide sequences (spec/context_parallel.h): queries and keys of several
// sequences, one after another, cut into ranges. The queries of a range see keys of the same range only.
//
// A kernel takes ranges that follow each other. What it is to pass over is a range of queries without keys, or of keys
// without queries, so that nothing is copied. Rows of padding see some keys or none: their results and gradients, which
// are zero, are of no account.
//
// Threads   values and functions without state.   Failure   none.
// Cost      proportional to the sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/context_parallel.h"

namespace neap::spec {

struct AttentionRanges {
  std::vector<std::int64_t> queries, keys;  ///< rows of each range
  /// The queries of a range are those of its last keys; otherwise they see all of them.
  bool causal = true;
  void add(std::int64_t of_queries, std::int64_t of_keys) {
    queries.push_back(of_queries);
    keys.push_back(of_keys);
  }
  /// Pairs of a query and a key that it sees, twice.
  [[nodiscard]] double pairs() const;
};

/// Ranges of a sequence in a call, at most.
constexpr std::int64_t kRangesOfSequence = 3;

/// Of a rank that has gathered keys of all tokens in their order: its first ranges (0) or its second ones (1) of these
/// sequences. Of its rows all; those of the other ranges have no keys.
[[nodiscard]] AttentionRanges gathered_ranges(std::span<const std::int64_t> lengths,
                                              const ContextShard& shard, std::size_t which);
/// Of a rank that has the rows of another one, or its own, as its keys.
[[nodiscard]] AttentionRanges ring_ranges(std::span<const std::int64_t> lengths,
                                          const ContextShard& shard, std::int64_t from);

/// The rank whose keys a ring brings in a round: its own ones first, then those of the ranks before it.
[[nodiscard]] inline std::int64_t rank_of_round(const ContextShard& shard, std::int64_t round) {
  return (shard.rank + shard.ranks - round) % shard.ranks;
}

}  // namespace neap::spec
