// Divides sequences into micro-batches: padded ones by number, packed ones by tokens.
//
// A packed micro-batch has at most `tokens` tokens and at most `sequences` sequences; these two
// bound every tensor of a pass. Sequences are assigned from longest to shortest, each to the first
// micro-batch with room. All micro-batches except the last few are nearly full.
//
// Threads   stateless functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace neap::step {

/// Rows [first, first + count) of a pass over data. The previous micro-batch already had the first
/// `seen` of them.
struct MicroBatch {
  std::int64_t first = 0, count = 0, seen = 0;
  bool aside = false;  ///< a plan counts its memory, but not its work
  [[nodiscard]] std::int64_t fresh() const { return count - seen; }
};
/// Micro-batches that pass through a block per load.
using Group = std::span<const MicroBatch>;
/// The number of micro-batches in a group of up to `together`.
[[nodiscard]] std::size_t group_size(const std::vector<MicroBatch>& cuts, std::int64_t together);
/// The number of groups of that size. Micro-batches that count only for memory are in groups of
/// their own.
[[nodiscard]] std::int64_t groups_of(const std::vector<MicroBatch>& cuts, std::int64_t together);
/// The number of groups of `size` at the start of `rest` that have the same numbers of rows as the
/// first group.
[[nodiscard]] std::size_t groups_alike(Group rest, std::size_t size);

/// The micro-batches of each mini-batch.
using Cuts = std::vector<std::vector<MicroBatch>>;

/// All `rows` in micro-batches of `size`. If the last one would be smaller, it repeats earlier
/// rows, so that all have the same shape.
[[nodiscard]] std::vector<MicroBatch> padded_cuts(std::int64_t rows, std::int64_t size);

/// The lengths of a job's sequences, and how many sequences a row has: 2 for a pair, which stays
/// together.
struct SequenceLimits {
  std::int64_t longest = 0;   ///< prompt and response
  std::int64_t response = 0;  ///< the response alone
  std::int64_t of_row = 1;
};

/// The bounds of a packed micro-batch.
struct PackingLimits {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  /// For a budget of `tokens`, at least `limits.longest * limits.of_row`, and at most `rows` rows.
  /// The number of sequences is what fills the budget if their average length is an eighth of the
  /// longest response, or 64 tokens.
  [[nodiscard]] static PackingLimits of(std::int64_t tokens, std::int64_t rows,
                                        const SequenceLimits& limits);
};

/// The rows of each micro-batch, in ascending order. `tokens` are those of each row; none exceeds
/// the limits. Rows with 0 tokens are left out.
[[nodiscard]] std::vector<std::vector<std::int64_t>> pack_rows(
    const std::vector<std::int64_t>& tokens, const PackingLimits& limits, std::int64_t of_row);

/// The number of micro-batches of `rows` rows with maximum lengths.
[[nodiscard]] std::int64_t most_micro_batches(std::int64_t rows, std::int64_t budget,
                                              const SequenceLimits& limits);

/// Micro-batches that represent everything that can be packed, for plans.
struct PackedLayout {
  std::vector<std::int64_t> lengths;  ///< tokens of each sequence
  /// First row of each sequence on a rank, then the number of rows.
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> counts;       ///< the same for tokens that the head reads
  std::vector<MicroBatch> micro_batches;  ///< in rows of data
};
/// Tokens of a micro-batch on a rank, and how many of them the head reads.
struct PackedSize {
  std::int64_t rows = 0, read = 0;
};
/// Micro-batches of a layout in addition to its largest ones.
struct LayoutOptions {
  /// Adds a micro-batch for each of these numbers of sequences.
  std::vector<std::int64_t> further{};
  std::vector<PackedSize> smaller{};  ///< adds a micro-batch for each of these sizes
  /// Size of the first group, whose micro-batches have the most sequences.
  std::int64_t together = 1;
  /// Context-parallel size (spec/ranks/context_parallel.h); no micro-batch gives a rank more rows than
  /// one of the layout.
  std::int64_t ranks = 1;
};
/// The layout of `rows` rows: a micro-batch with the most sequences, then those with the fewest
/// sequences, as many as there are with maximum lengths. All have the maximum number of tokens.
/// Between them are those of the options, which count only for memory.
[[nodiscard]] PackedLayout extreme_layout(std::int64_t rows, std::int64_t budget,
                                          const SequenceLimits& limits,
                                          const LayoutOptions& options = {});

}  // namespace neap::step
