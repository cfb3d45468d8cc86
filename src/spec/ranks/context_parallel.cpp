#include "spec/ranks/context_parallel.h"

#include <algorithm>
#include <numeric>

namespace neap::spec {

std::array<TokenRange, 2> own_tokens(std::int64_t length, const ContextShard& shard) {
  const std::int64_t c = shard.ranks, i = shard.rank;
  if (c == 1) return {TokenRange{0, length}, TokenRange{length, 0}};
  // The remainder makes chunks one token longer: first the first chunks of ranks 0, 1, ..., then
  // their second chunks.
  const std::int64_t least = length / (2 * c), rest = length % (2 * c);
  const std::int64_t longer = std::min(rest, c);     // first chunks that are longer
  const std::int64_t second_longer = rest - longer;  // second chunks that are longer
  const std::int64_t first = i * least + std::min(i, longer);
  // Second chunks lie in descending order of ranks.
  const std::int64_t before = std::max<std::int64_t>(0, second_longer - (i + 1));
  const std::int64_t second = c * least + longer + (c - 1 - i) * least + before;
  return {TokenRange{first, least + (i < longer ? 1 : 0)},
          TokenRange{second, least + (i < second_longer ? 1 : 0)}};
}

ContextPlaces context_places(const std::vector<std::int64_t>& lengths, std::int64_t ranks) {
  const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::int64_t rows = 0;  // per rank
  for (const std::int64_t length : lengths) rows += rows_of_each(length, ranks);
  ContextPlaces out{std::vector<std::int64_t>(static_cast<std::size_t>(all)),
                    std::vector<std::int64_t>(static_cast<std::size_t>(ranks * rows), all)};
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t first_token = 0, first_row = rank * rows;
    for (const std::int64_t length : lengths) {
      std::int64_t row = first_row;
      for (const TokenRange& range : own_tokens(length, {ranks, rank})) {
        for (std::int64_t t = range.first; t < range.end(); ++t, ++row) {
          out.rows[static_cast<std::size_t>(first_token + t)] = row;
          out.tokens[static_cast<std::size_t>(row)] = first_token + t;
        }
      }
      first_token += length;
      first_row += rows_of_each(length, ranks);
    }
  }
  return out;
}

}  // namespace neap::spec
