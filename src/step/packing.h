// How sequences are cut into micro-batches: padded ones by their number, packed ones by tokens.
//
// A micro-batch of packed sequences has at most `tokens` tokens in at most `sequences` sequences, so
// that these two bound every tensor of a pass. The sequences that go together are chosen longest
// first, each into the first micro-batch that has room: all but the last few are nearly full.
//
// Threads   functions without state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace neap::step {

/// Rows [first, first + count) of a pass over data. The first `seen` of them were in the batch before.
struct MicroBatch {
  std::int64_t first = 0, count = 0, seen = 0;
  bool aside = false;  ///< a plan counts its memory and no work
  [[nodiscard]] std::int64_t fresh() const { return count - seen; }
};
/// Micro-batches that go through a block together.
using Group = std::span<const MicroBatch>;
/// Micro-batches of a group where `together` are wanted: no more than there are.
[[nodiscard]] std::size_t group_size(const std::vector<MicroBatch>& cuts, std::int64_t together);
/// Groups of such micro-batches; those that count for memory alone are in groups of their own.
[[nodiscard]] std::int64_t groups_of(const std::vector<MicroBatch>& cuts, std::int64_t together);
/// How many groups of `size`, from the first, have as many rows as it, micro-batch by micro-batch.
[[nodiscard]] std::size_t groups_alike(Group rest, std::size_t size);

/// The micro-batches of each mini-batch.
using Cuts = std::vector<std::vector<MicroBatch>>;

/// All `rows` in micro-batches of `size`. Where the last would be smaller it reaches back over rows
/// that were seen, so that every one has the same shape.
[[nodiscard]] std::vector<MicroBatch> padded_cuts(std::int64_t rows, std::int64_t size);

/// The lengths of a job's sequences, and how many belong to a row: 2 of a pair, which stay together.
struct SequenceLimits {
  std::int64_t longest = 0;   ///< prompt and response
  std::int64_t response = 0;  ///< of it
  std::int64_t of_row = 1;
};

/// What bounds a micro-batch of packed sequences.
struct PackingLimits {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  /// For a budget of `tokens`, at least `limits.longest * limits.of_row`, and at most `rows` rows: with
  /// the sequences that it takes to fill it where they have on average an eighth of the longest
  /// response, or 64 tokens.
  [[nodiscard]] static PackingLimits of(std::int64_t tokens, std::int64_t rows,
                                        const SequenceLimits& limits);
};

/// The rows of each micro-batch, in ascending order: of rows with these `tokens`, none over the
/// limits. Rows of 0 tokens are left out.
[[nodiscard]] std::vector<std::vector<std::int64_t>> pack_rows(
    const std::vector<std::int64_t>& tokens, const PackingLimits& limits, std::int64_t of_row);

/// Micro-batches of `rows` rows at full lengths.
[[nodiscard]] std::int64_t most_micro_batches(std::int64_t rows, std::int64_t budget,
                                              const SequenceLimits& limits);

/// Micro-batches that stand for all that can be packed: plans count them.
struct PackedLayout {
  std::vector<std::int64_t> lengths;      ///< tokens of each sequence
  std::vector<std::int64_t> starts;       ///< first row of each sequence on a rank, and all rows
  std::vector<std::int64_t> counts;       ///< the same of the tokens that the head reads
  std::vector<MicroBatch> micro_batches;  ///< in rows of data
};
/// Tokens of a micro-batch on a rank, and those of them that the head reads.
struct PackedSize {
  std::int64_t rows = 0, read = 0;
};
/// What a layout has in addition to its largest micro-batches.
struct LayoutOptions {
  std::vector<std::int64_t> further{};  ///< one with each of these numbers of sequences
  std::vector<PackedSize> smaller{};    ///< and one of each of these sizes
  std::int64_t together = 1;  ///< the first group of so many has the most sequences in each
  std::int64_t ranks =
      1;  ///< that divide each sequence (spec/context_parallel.h); no micro-batch leaves a rank more
          ///< rows than one of the layout
};
/// Of `rows` rows: a micro-batch with the most sequences, then as many as there are at full lengths
/// with the fewest, all with as many tokens as the limits allow. Between them those of the options, which count for
/// memory alone.
[[nodiscard]] PackedLayout extreme_layout(std::int64_t rows, std::int64_t budget,
                                          const SequenceLimits& limits,
                                          const LayoutOptions& options = {});

}  // namespace neap::step
