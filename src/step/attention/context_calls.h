// Inputs of attention for a batch with context parallelism, computed once for all blocks.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "spec/ranks/context_ranges.h"
#include "step/operations/operations.h"

namespace neap::step {

/// The maximum number of sequences per kernel call. A kernel needs scratch memory for one more tile
/// of rows per range.
constexpr std::int64_t kSequencesOfCall = 32;

template <class Ops, class T = typename Ops::Tensor>
PackedRanges<T> packed_ranges(Ops& ops, const spec::AttentionRanges& ranges) {
  const auto most = [](const std::vector<std::int64_t>& n) {
    return *std::max_element(n.begin(), n.end());
  };
  return {ops.starts_of(ranges.queries),
          ops.starts_of(ranges.keys),
          std::ssize(ranges.queries),
          most(ranges.queries),
          most(ranges.keys),
          ranges.pairs(),
          ranges.causal};
}

template <class Ops, class T = typename Ops::Tensor>
ContextRounds<T> context_rounds(Ops& ops, const Spans<T>& spans) {
  const spec::ContextShard& shard = spans.context;
  ContextRounds<T> out(static_cast<std::size_t>(shard.ring ? shard.ranks : 2));
  std::int64_t first_row = 0, first_token = 0;
  const std::int64_t all = std::ssize(spans.lengths);
  for (std::int64_t at = 0; at < all; at += kSequencesOfCall) {
    const auto lengths =
        std::span(spans.lengths)
            .subspan(static_cast<std::size_t>(at),
                     static_cast<std::size_t>(std::min(kSequencesOfCall, all - at)));
    std::int64_t rows = 0, tokens = 0;
    for (const std::int64_t length : lengths) {
      rows += spec::rows_of_each(length, shard.ranks);
      tokens += length;
    }
    for (std::size_t round = 0; round < out.size() && tokens > 0; ++round) {
      const auto number = static_cast<std::int64_t>(round);
      const spec::AttentionRanges ranges =
          shard.ring ? spec::ring_ranges(lengths, shard, spec::rank_of_round(shard, number))
                     : spec::gathered_ranges(lengths, shard, round);
      out[round].push_back({first_row, rows, shard.ring ? first_row : first_token,
                            shard.ring ? rows : tokens, packed_ranges(ops, ranges)});
    }
    first_row += rows;
    first_token += tokens;
  }
  return out;
}

/// Adds attention's inputs for context parallelism to `spans`.
template <class Ops, class T = typename Ops::Tensor>
Spans<T> with_places(Ops& ops, Spans<T> spans) {
  if (!spans.divided()) return spans;
  if (!spans.context.ring) {
    std::tie(spans.rows_of_tokens, spans.tokens_of_rows) =
        ops.places_of(spans.lengths, spans.context.ranks);
  }
  spans.rounds = std::make_shared<const ContextRounds<T>>(context_rounds(ops, spans));
  return spans;
}

}  // namespace neap::step
