#include "spec/ranks/context_ranges.h"

namespace neap::spec {

double AttentionRanges::pairs() const {
  double sum = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const auto q = static_cast<double>(queries[i]), k = static_cast<double>(keys[i]);
    if (q > 0 && k > 0) sum += causal ? q * (2 * k - q) : 2 * q * k;
  }
  return sum;
}

AttentionRanges gathered_ranges(std::span<const std::int64_t> lengths, const ContextShard& shard,
                                std::size_t which) {
  AttentionRanges out;
  for (const std::int64_t length : lengths) {
    const std::array<TokenRange, 2> own = own_tokens(length, shard);
    const std::int64_t rows = rows_of_each(length, shard.ranks);
    const std::int64_t end = own.at(which).end();  // end of the keys
    if (which == 0) {
      out.add(own[0].count, end);
      out.add(rows - own[0].count, 0);
      out.add(0, length - end);
    } else {
      out.add(own[0].count, 0);
      out.add(own[1].count, end);
      out.add(rows - own[0].count - own[1].count, length - end);
    }
  }
  return out;
}

// If the other rank's number is lower, its first range lies before all of this rank's tokens.
// Otherwise both of its ranges lie between this rank's two.
AttentionRanges ring_ranges(std::span<const std::int64_t> lengths, const ContextShard& shard,
                            std::int64_t from) {
  AttentionRanges out;
  out.causal = from == shard.rank;
  for (const std::int64_t length : lengths) {
    const std::array<TokenRange, 2> own = own_tokens(length, shard);
    const std::array<TokenRange, 2> theirs = own_tokens(length, {shard.ranks, from});
    const std::int64_t rows = rows_of_each(length, shard.ranks);
    if (from == shard.rank) {
      out.add(rows, rows);
    } else if (from < shard.rank) {
      out.add(rows, theirs[0].count);
      out.add(0, rows - theirs[0].count);
    } else {
      const std::int64_t keys = theirs[0].count + theirs[1].count;
      out.add(own[0].count, 0);
      out.add(own[1].count, keys);
      out.add(rows - own[0].count - own[1].count, rows - keys);
    }
  }
  return out;
}

}  // namespace neap::spec
