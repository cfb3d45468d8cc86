#include "step/packing.h"

#include <algorithm>
#include <numeric>

#include "step/shape.h"

namespace neap::step {
namespace {

constexpr std::int64_t kFewestSequences = 8;
constexpr std::int64_t kShortSequence = 64;
constexpr std::int64_t kShareOfResponse = 8;

// Adds `count` sequences of `tokens` together: the longest first, the last ones of one token.
void add_sequences(PackedLayout& layout, std::int64_t tokens, std::int64_t count,
                   const SequenceLimits& limits, bool aside) {
  const std::int64_t first = std::ssize(layout.starts) - 1;
  const std::int64_t read = layout.counts.back() + std::min(tokens, count * limits.response);
  for (std::int64_t left = count; left > 0; --left) {
    const std::int64_t length = std::min(limits.longest, tokens - (left - 1));
    tokens -= length;
    layout.starts.push_back(layout.starts.back() + length);
    layout.counts.push_back(read);  // which sequence reads which is of no account
  }
  layout.micro_batches.push_back({first / limits.of_row, count / limits.of_row, 0, aside});
}

}  // namespace

std::vector<MicroBatch> padded_cuts(std::int64_t rows, std::int64_t size) {
  std::vector<MicroBatch> out;
  for (std::int64_t at = 0; at < rows; at += size) {
    const std::int64_t first = std::max<std::int64_t>(0, std::min(at, rows - size));
    out.push_back({first, std::min(size, rows), at - first});
  }
  return out;
}

PackingLimits PackingLimits::of(std::int64_t tokens, std::int64_t rows,
                                const SequenceLimits& limits) {
  const std::int64_t all = rows * limits.of_row;
  const std::int64_t average = std::max(kShortSequence, limits.response / kShareOfResponse);
  const std::int64_t most =
      std::max({kFewestSequences, 2 * div_up(tokens, limits.longest), tokens / average});
  const std::int64_t with_one_token_each = tokens / limits.of_row * limits.of_row;
  return {std::min(tokens, all * limits.longest),
          std::min({all, div_up(most, limits.of_row) * limits.of_row, with_one_token_each})};
}

std::vector<std::vector<std::int64_t>> pack_rows(const std::vector<std::int64_t>& tokens,
                                                 const PackingLimits& limits, std::int64_t of_row) {
  std::vector<std::int64_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](std::int64_t row) { return tokens[static_cast<std::size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return size(a) > size(b); });
  std::vector<std::vector<std::int64_t>> out;
  std::vector<std::int64_t> room;
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, limits.sequences / of_row));
  for (const std::int64_t row : order) {
    if (size(row) == 0) break;
    std::size_t i = 0;
    while (i < out.size() && (room[i] < size(row) || out[i].size() >= most)) ++i;
    if (i == out.size()) {
      out.emplace_back();
      room.push_back(limits.tokens);
    }
    out[i].push_back(row);
    room[i] -= size(row);
  }
  for (std::vector<std::int64_t>& rows : out) std::sort(rows.begin(), rows.end());
  return out;
}

PackedLayout extreme_layout(std::int64_t rows, std::int64_t budget, const SequenceLimits& limits,
                            std::int64_t further) {
  const PackingLimits packing = PackingLimits::of(budget, rows, limits);
  const std::int64_t tokens = packing.tokens;
  const std::int64_t full_rows =
      std::max<std::int64_t>(1, budget / (limits.longest * limits.of_row));
  PackedLayout out;
  out.starts = out.counts = {0};
  add_sequences(out, tokens, packing.sequences, limits, false);
  if (further > 0)
    add_sequences(out, std::min(tokens, further * limits.longest), further, limits, true);
  constexpr std::int64_t kLeastShare = 64;
  for (std::int64_t less = tokens * 2 / 3; less > tokens / kLeastShare; less = less * 2 / 3) {
    const std::int64_t sequences =
        std::min(packing.sequences, div_up(less, limits.longest * limits.of_row) * limits.of_row);
    if (sequences < limits.of_row || less < 2 * sequences) break;
    add_sequences(out, less, sequences, limits, true);
  }
  const std::int64_t batches = div_up(rows, full_rows);
  if (batches == 1) return out;
  const std::int64_t fewest = div_up(tokens, limits.longest * limits.of_row) * limits.of_row;
  add_sequences(out, tokens, fewest, limits, false);
  out.micro_batches.insert(out.micro_batches.end(), static_cast<std::size_t>(batches - 2),
                           MicroBatch(out.micro_batches.back()));
  return out;
}

}  // namespace neap::step
