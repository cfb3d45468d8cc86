// Whether Neap's kernels (src/kernels) replace operations of libtorch. Plan and run use the same
// choice.
#pragma once

#include <cstdint>

#include "kernels/decoding_sizes.h"
#include "kernels/norm_sizes.h"
#include "kernels/sampler_sizes.h"
#include "spec/types/dtype.h"

namespace neap::step {

/// Parts of a row of logits, each read by a block of sampler.cu.
constexpr std::int64_t draw_parts(std::int64_t columns) {
  return (columns + kernels::sampler::kPart - 1) / kernels::sampler::kPart;
}

/// The kernel of a product of a decoding step's rows with matrices.
enum class RowProduct {
  kLibrary,   ///< cuBLAS
  kFewRows,   ///< few_rows.cu
  kSomeRows,  ///< some_rows.cu
};

/// Blocks of some_rows.cu. They do not depend on the number of rows, so neither do a row's bits.
struct RowsGrid {
  std::int64_t cluster = 1;  ///< blocks that divide the columns
  std::int64_t blocks = 2;   ///< of a multiprocessor
  friend bool operator==(const RowsGrid&, const RowsGrid&) = default;
};

/// Threads that read a row in RMS norms of heads; 0: rows of other sizes.
constexpr std::int64_t norm_lanes(std::int64_t columns) {
  return columns == 64 || columns == 128 || columns == 256 ? columns / kernels::norm::kOfThread : 0;
}

struct OwnKernels {
  bool on = false;           ///< the GPU and the job support them
  bool warp_groups = false;  ///< the GPU is one with products of warp groups, for some_rows.cu
  std::int64_t multiprocessors = 132;  ///< of the GPU

  /// Whether they take tensors of this type.
  [[nodiscard]] constexpr bool take(spec::Dtype dtype) const {
    return on && (dtype == spec::Dtype::kBfloat16 || dtype == spec::Dtype::kFloat32);
  }
  /// Whether they add such rows to a table. Narrower ones have too few columns for a block's threads.
  [[nodiscard]] constexpr bool add_rows(spec::Dtype table, spec::Dtype rows,
                                        std::int64_t columns) const {
    constexpr std::int64_t kLeastColumns = 64;
    return take(rows) && columns >= kLeastColumns &&
           (table == rows || table == spec::Dtype::kFloat32);
  }
  /// Whether they compute RMS norms of such rows and their backward. A row is read by a block of up to
  /// 512 threads. A head is read by a part of a warp.
  [[nodiscard]] constexpr bool norm_rows(spec::Dtype dtype, std::int64_t columns) const {
    if (!take(dtype)) return false;
    if (norm_lanes(columns) > 0) return true;
    return columns % 8 == 0 && columns >= 512 && columns <= 4096;
  }
  /// The fastest product of this number of rows with matrices (out, in).
  [[nodiscard]] RowProduct row_product(spec::Dtype dtype, std::int64_t rows, std::int64_t in,
                                       std::int64_t out) const;
  /// Whether a kernel can normalize such rows and multiply them by the matrices.
  [[nodiscard]] bool normalizes(spec::Dtype dtype, std::int64_t rows, std::int64_t in,
                                std::int64_t out) const;
  /// Whether the GPU's library multiplies matrices (rows, depth) and (depth, columns) by the fastest
  /// of its algorithms (kernels/tuned_products.h).
  [[nodiscard]] bool tunes(spec::Dtype dtype, std::int64_t rows, std::int64_t depth,
                           std::int64_t columns) const;
  /// How some_rows.cu divides a product with matrices (out, in).
  [[nodiscard]] RowsGrid rows_grid(std::int64_t in, std::int64_t out) const;
  /// Whether they draw tokens from such rows of logits. bfloat16 only: its few values are counted
  /// instead of sorted.
  [[nodiscard]] constexpr bool draw(spec::Dtype dtype, std::int64_t columns, bool in_order) const {
    return take(dtype) && draw_parts(columns) <= kernels::sampler::kMostParts &&
           (!in_order || dtype == spec::Dtype::kBfloat16);
  }
};

/// Query heads of a block of attend.cu. With few rows each head has a block of its own, so that the GPU is
/// full. With many rows a block has several heads that share keys, which are then read once.
constexpr std::int64_t attend_heads(std::int64_t rows, std::int64_t heads, std::int64_t key_heads) {
  constexpr std::int64_t kLeastBlocks = 256;
  const std::int64_t of_key = heads / key_heads;
  const std::int64_t blocks =
      (of_key + kernels::decoding::kMostHeads - 1) / kernels::decoding::kMostHeads;
  return of_key > 1 && rows * key_heads * blocks >= kLeastBlocks ? (of_key + blocks - 1) / blocks
                                                                 : 1;
}

/// Number of thread blocks, at most `limit`, among which attend.cu divides a head's keys. `heads`
/// counts those of all rows. More blocks than the GPU runs at once gain nothing.
constexpr std::int64_t attend_shares(std::int64_t heads, std::int64_t limit) {
  constexpr std::int64_t kKeys = 256, kBlocks = 512;
  const std::int64_t most = heads < kBlocks ? kBlocks / heads : 1;
  const std::int64_t wanted = (limit + kKeys - 1) / kKeys;
  return wanted < most ? wanted : most;
}

/// Keys of each: whole pages of a KV cache.
constexpr std::int64_t attend_share(std::int64_t limit, std::int64_t shares) {
  constexpr std::int64_t kPage = kernels::decoding::kPageTokens;
  return (limit + shares * kPage - 1) / (shares * kPage) * kPage;
}

/// Thread blocks of the backward of RMS norms. Each writes a row of sums.
constexpr std::int64_t norm_blocks(std::int64_t rows) {
  constexpr std::int64_t kMostBlocks = 256, kRowsAtOnce = 4;
  const std::int64_t blocks = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

/// Scratch of sampler.cu per part, in int64: its largest logit and sum, and 16-bit counts if tokens
/// must be sorted.
constexpr std::int64_t draw_scratch(bool in_order) {
  return 2 + (in_order ? kernels::sampler::kWindow / 4 : 0);
}

}  // namespace neap::step
