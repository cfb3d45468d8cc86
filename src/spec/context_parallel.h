// How the ranks along the axis "context" divide the tokens of each sequence.
//
// A sequence is cut into 2 c chunks for c ranks, and rank i has chunks i and 2 c - 1 - i: with causal attention the
// first see few keys and the last see many, so every rank has as many pairs of tokens (Megatron, Llama 3). Sizes of
// chunks differ by one at most, and so do the tokens of ranks. The first rank has the most, and every rank
// has as many rows of hidden states for the sequence: rows_of_each(length, c), of which the last may be padding.
//
// Threads   values and functions without state.   Failure   none.
// Cost      proportional to the tokens where places of all of them are asked for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "spec/mesh.h"

namespace neap::spec {

/// Which of the ranks that divide sequences this is.
struct ContextShard {
  std::int64_t ranks = 1, rank = 0;
  bool ring = false;  ///< keys and values pass round; otherwise each rank gathers all of them
  friend bool operator==(const ContextShard&, const ContextShard&) = default;
};

/// Tokens [first, first + count) of a sequence.
struct TokenRange {
  std::int64_t first = 0, count = 0;
  [[nodiscard]] std::int64_t end() const { return first + count; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// Those of a rank, in ascending order; either may be empty. Of one rank the whole sequence, and nothing.
[[nodiscard]] std::array<TokenRange, 2> own_tokens(std::int64_t length, const ContextShard& shard);

/// Places between the tokens of N sequences, one after another, and the rows of all ranks: those of the first rank,
/// sequence by sequence, then those of the next one.
struct ContextPlaces {
  std::vector<std::int64_t> rows;  ///< (tokens,): the row that each token is
  std::vector<std::int64_t>
      tokens;  ///< (rows,): the token that each row is; padding has the number of all tokens
};
[[nodiscard]] ContextPlaces context_places(const std::vector<std::int64_t>& lengths,
                                           std::int64_t ranks);

}  // namespace neap::spec
