#include "step/model/packing.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "spec/ranks/context_parallel.h"
#include "step/operations/shape.h"

namespace neap::step {
namespace {

constexpr std::int64_t kFewestSequences = 8;
constexpr std::int64_t kShortSequence = 64;
constexpr std::int64_t kShareOfResponse = 8;

// Adds a micro-batch of `count` sequences with `tokens` tokens in total: the longest sequences
// first, the last ones with one token.
void add_sequences(PackedLayout& layout, std::int64_t tokens, std::int64_t count,
                   const SequenceLimits& limits, bool aside) {
  const std::int64_t first = std::ssize(layout.starts) - 1;
  const std::int64_t read = layout.counts.back() + std::min(tokens, count * limits.response);
  for (std::int64_t left = count; left > 0; --left) {
    const std::int64_t length = std::min(limits.longest, tokens - (left - 1));
    tokens -= length;
    layout.lengths.push_back(length);
    layout.starts.push_back(layout.starts.back() + length);
    layout.counts.push_back(read);  // it does not matter which sequence reads which
  }
  layout.micro_batches.push_back({first / limits.of_row, count / limits.of_row, 0, aside});
}

// Converts whole sequences to the rows of one context-parallel rank. The number of rows is the
// maximum for this number of tokens, where each sequence is rounded up. Every sequence has a row.
// The rest makes the first sequences long, because a kernel takes some of them per call, and one
// call should have the most rows. With the fewest sequences, one has the maximum length.
void divide(PackedLayout& layout, const SequenceLimits& limits, std::int64_t ranks) {
  const std::int64_t longest = spec::rows_of_each(limits.longest, ranks);
  const std::vector<std::int64_t> read = std::exchange(layout.counts, {0});
  layout.starts = {0};
  for (const MicroBatch& micro : layout.micro_batches) {
    const std::int64_t first = micro.first * limits.of_row, count = micro.count * limits.of_row;
    if (first < std::ssize(layout.starts) - 1) continue;  // same as the previous one
    const auto from = layout.lengths.begin() + first, to = from + count;
    const std::int64_t tokens = std::accumulate(from, to, std::int64_t{0});
    const std::int64_t all = std::min((tokens + count * (ranks - 1)) / ranks, count * longest);
    const auto at = static_cast<std::size_t>(first), end = at + static_cast<std::size_t>(count);
    const std::int64_t counted = layout.counts.back() + std::min(read[end] - read[at], all);
    std::int64_t left = all - count;
    for (auto it = from; it != to; ++it) {
      const std::int64_t more = std::min(left, longest - 1);
      left -= more;
      *it = std::min(limits.longest, (1 + more) * ranks);
      layout.starts.push_back(layout.starts.back() + 1 + more);
      layout.counts.push_back(counted);
    }
  }
}

// Repeats the last micro-batch.
void repeat_last(PackedLayout& layout, std::int64_t times) {
  layout.micro_batches.insert(layout.micro_batches.end(), static_cast<std::size_t>(times),
                              MicroBatch(layout.micro_batches.back()));
}

}  // namespace

std::size_t group_size(const std::vector<MicroBatch>& cuts, std::int64_t together) {
  const auto counted =
      std::count_if(cuts.begin(), cuts.end(), [](const MicroBatch& micro) { return !micro.aside; });
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(together, 1, std::max<std::int64_t>(1, counted)));
}

std::int64_t groups_of(const std::vector<MicroBatch>& cuts, std::int64_t together) {
  const auto size = static_cast<std::int64_t>(group_size(cuts, together));
  std::int64_t groups = 0, open = 0;  // consecutive micro-batches
  for (const MicroBatch& micro : cuts) {
    if (!micro.aside) {
      ++open;
      continue;
    }
    groups += div_up(std::exchange(open, 0), size) + 1;
  }
  return groups + div_up(open, size);
}

std::size_t groups_alike(Group rest, std::size_t size) {
  std::size_t alike = 1;
  const auto same = [](const MicroBatch& a, const MicroBatch& b) { return a.count == b.count; };
  for (; (alike + 1) * size <= rest.size(); ++alike) {
    const Group next = rest.subspan(alike * size, size);
    if (!std::equal(next.begin(), next.end(), rest.begin(), same)) break;
  }
  return alike;
}

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

std::int64_t most_micro_batches(std::int64_t rows, std::int64_t budget,
                                const SequenceLimits& limits) {
  return div_up(rows, std::max<std::int64_t>(1, budget / (limits.longest * limits.of_row)));
}

namespace {

// Uses the most sequences, because kernels that take sequences one by one keep something for each.
void add_smaller(PackedLayout& layout, const PackingLimits& most, const SequenceLimits& limits,
                 const PackedSize& size, std::int64_t ranks) {
  const auto sequences_in = [&](std::int64_t tokens) {
    return std::min(most.sequences, tokens / limits.of_row * limits.of_row);
  };
  // With context parallelism, the number of tokens that gives each rank this many rows.
  const std::int64_t of_ranks = std::min(size.rows * ranks, most.tokens);
  const std::int64_t rounded = of_ranks - (ranks - 1) * sequences_in(of_ranks);
  const std::int64_t tokens = ranks > 1 ? std::max(rounded, sequences_in(of_ranks)) : of_ranks;
  const std::int64_t sequences = sequences_in(tokens);
  if (sequences < limits.of_row) return;
  const std::int64_t before = layout.counts.back();
  add_sequences(layout, std::min(tokens, sequences * limits.longest), sequences, limits, true);
  for (auto it = layout.counts.end() - sequences; it != layout.counts.end(); ++it)
    *it = std::min(*it, before + size.read);
}

PackedLayout whole_layout(std::int64_t rows, std::int64_t budget, const SequenceLimits& limits,
                          const LayoutOptions& options) {
  const PackingLimits packing = PackingLimits::of(budget, rows, limits);
  const std::int64_t tokens = packing.tokens;
  PackedLayout out;
  out.starts = out.counts = {0};
  const std::int64_t batches = most_micro_batches(rows, budget, limits);
  const std::int64_t of_most = std::min(options.together, batches);
  add_sequences(out, tokens, packing.sequences, limits, false);
  repeat_last(out, of_most - 1);
  for (const std::int64_t n : options.further)
    add_sequences(out, std::min(tokens, n * limits.longest), n, limits, true);
  for (const PackedSize& size : options.smaller)
    add_smaller(out, packing, limits, size, options.ranks);
  if (batches == of_most) return out;
  const std::int64_t fewest = div_up(tokens, limits.longest * limits.of_row) * limits.of_row;
  add_sequences(out, tokens, fewest, limits, false);
  repeat_last(out, batches - of_most - 1);
  return out;
}

}  // namespace

PackedLayout extreme_layout(std::int64_t rows, std::int64_t budget, const SequenceLimits& limits,
                            const LayoutOptions& options) {
  PackedLayout out = whole_layout(rows, budget, limits, options);
  if (options.ranks > 1) divide(out, limits, options.ranks);
  return out;
}

}  // namespace neap::step
