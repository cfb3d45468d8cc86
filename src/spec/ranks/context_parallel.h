// Context parallelism: how ranks along the axis "context" share the tokens of each sequence.
//
// A sequence is divided into 2 c chunks for c ranks. Rank i has chunks i and 2 c - 1 - i. With
// causal attention early tokens see few keys and late tokens see many, so this balances the work
// (Megatron, Llama 3). Sizes of chunks differ by at most one token, and so do those of ranks; the
// first rank has the most. Every rank has rows_of_each(length, c) rows of hidden states per
// sequence, of which the last may be padding.
//
// Threads   values and stateless functions.
// Failure   none.
// Cost      proportional to the tokens, for functions that return places of all tokens.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "spec/types/mesh.h"

namespace neap::spec {

/// Which rank of a context-parallel group this is.
struct ContextShard {
  std::int64_t ranks = 1, rank = 0;
  /// Ring attention: keys and values are passed around; otherwise each rank all-gathers them.
  bool ring = false;
  friend bool operator==(const ContextShard&, const ContextShard&) = default;
};

/// Tokens [first, first + count) of a sequence.
struct TokenRange {
  std::int64_t first = 0, count = 0;
  [[nodiscard]] std::int64_t end() const { return first + count; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// The tokens of a rank, in ascending order; either range may be empty. With one rank, the first
/// range is the whole sequence.
[[nodiscard]] std::array<TokenRange, 2> own_tokens(std::int64_t length, const ContextShard& shard);

/// Maps the tokens of N sequences, one after another, to the rows of all ranks and back. Rows are
/// ordered by rank, then by sequence.
struct ContextPlaces {
  std::vector<std::int64_t> rows;  ///< (tokens,): the row of each token
  /// (rows,): the token of each row; the number of tokens for padding
  std::vector<std::int64_t> tokens;
};
[[nodiscard]] ContextPlaces context_places(const std::vector<std::int64_t>& lengths,
                                           std::int64_t ranks);

}  // namespace neap::spec
