// Decoding attention: the choice of kernel, and its inputs. Each sequence has one query, which
// attends to its keys in the cache.
//
// FlashAttention reads the cache as packed sequences with arbitrary starts; numbers of keys are on
// the device. If query heads share a key head, each pair of a sequence and a key head is a packed
// sequence. Its queries are then contiguous, and the kernel divides its keys among thread blocks,
// so that few sequences fill a GPU. Other kernels add a mask to the scores of all keys below a
// limit.
//
// The code is written over operations like the passes, so a plan counts its memory by running it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "step/attention/attention.h"
#include "step/operations/operations.h"
#include "step/operations/own_kernels.h"

namespace neap::step {

/// Whether decoding uses decode_attention_by_products; its mask includes the window.
[[nodiscard]] inline bool decodes_by_products(const ScoreOptions& o, bool cuda, Dtype dtype,
                                              std::int64_t width) {
  return o.softcap > 0 || o.alibi || (cuda && !fused_width(dtype, width));
}
/// Whether decoding uses FlashAttention.
[[nodiscard]] inline bool decodes_by_flash(const ScoreOptions& o, bool cuda, Dtype dtype,
                                           std::int64_t width) {
  return !decodes_by_products(o, cuda, dtype, width) &&
         fused_kernel(cuda, /*cudnn=*/false, dtype, width) == AttentionKernel::kFlash;
}

/// Whether every block does.
[[nodiscard]] inline bool decodes_by_flash(const spec::Architecture& a, bool cuda, Dtype dtype) {
  return decodes_by_flash(score_options(a, 0), cuda, dtype, a.head_dim);
}

/// The sizes of one step's attention in a block.
struct DecodeSizes {
  std::int64_t rows = 0, heads = 0, key_heads = 0, width = 0;
  std::int64_t limit = 0;  ///< of keys, as kernels get it
};
/// Whether Neap's kernel stores the new heads and attends. Its thread blocks read keys again for heads
/// that share them, unless they have all of these. With many such keys FlashAttention is faster
/// (bench/results/decode-parts-h200.jsonl).
[[nodiscard]] inline bool decodes_by_own(const OwnKernels& own, const ScoreOptions& o, bool cuda,
                                         Dtype dtype, const DecodeSizes& sizes) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 25;
  const std::int64_t of_block = attend_heads(sizes.rows, sizes.heads, sizes.key_heads);
  const std::int64_t of_key = sizes.heads / sizes.key_heads;
  const std::int64_t reads = sizes.key_heads * ((of_key + of_block - 1) / of_block);
  const std::int64_t bytes =
      2 * sizes.rows * reads * sizes.limit * sizes.width * element_bytes(dtype);
  return own.take(dtype) && decodes_by_flash(o, cuda, dtype, sizes.width) &&
         (reads == sizes.key_heads || bytes <= kMostBytes);
}

/// `n` or the next power of two, at most `most`: many steps then run the same kernels.
[[nodiscard]] inline std::int64_t decode_bucket(std::int64_t n, std::int64_t most) {
  return std::min(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n))), most);
}

/// A host bound on the keys of a sequence in a decoding step.
struct KeyLimit {
  KeyLimit(std::int64_t n) : keys(n), rounded(n) {}  // NOLINT(google-explicit-constructor)
  KeyLimit(std::int64_t n, std::int64_t bucket) : keys(n), rounded(bucket) {}
  std::int64_t keys;     ///< of the longest sequence
  std::int64_t rounded;  ///< the limit that kernels get
};
/// FlashAttention reads existing keys only. The limit only sets how many thread blocks share them.
/// It is rounded, so that a step gives the same results in a graph.
[[nodiscard]] inline KeyLimit key_limit(std::int64_t keys, std::int64_t cache_tokens, bool flash) {
  constexpr std::int64_t kFewest = 256;
  if (!flash) return keys;
  return {keys, decode_bucket(std::max(keys, kFewest), cache_tokens)};
}

/// Whether a block's queries are not contiguous: a fused projection stores them next to keys and
/// values, and no later operation copies them. FlashAttention needs queries that share a key head
/// to be contiguous.
[[nodiscard]] inline bool leaves_queries_apart(const spec::Architecture& a, std::int64_t block) {
  return a.qkv != spec::QkvLayout::kSeparate && !a.rotates(block) &&
         a.num_attention_heads > a.num_key_value_heads;
}

/// Rows of a cache (B, K, T, D) as packed sequences: how many each of the B sequences has, and
/// their stride.
struct PackedCache {
  std::int64_t of_sequence = 1;  ///< K if H / K query heads share a key head, else 1
  std::int64_t stride = 0;       ///< in rows of D elements
};
[[nodiscard]] inline PackedCache packed_cache(std::int64_t heads, std::int64_t key_heads,
                                              std::int64_t tokens) {
  return heads > key_heads ? PackedCache{key_heads, tokens} : PackedCache{1, key_heads * tokens};
}

/// One query per sequence, q (B, H, D), against the keys that mask (B, limit) shows: (B, H * D). H
/// query heads, K key heads.
template <class Ops, class T = typename Ops::Tensor>
T decode_attention_by_products(Ops& ops, const T& q, const T& keys, const T& values, const T& mask,
                               const ScoreOptions& options) {
  const std::int64_t b = q.size(0);
  const std::int64_t h = q.size(1);
  const std::int64_t d = q.size(2);
  const std::int64_t k = keys.size(1);
  const std::int64_t limit = mask.size(1);
  const auto seen = [&](const T& cache) {  // (B * K, limit, D)
    return ops.view(ops.narrow(ops.narrow(cache, 0, 0, b), 2, 0, limit), {b * k, limit, d});
  };
  T s = ops.batch_product(ops.view(ops.clone(q), {b * k, -1, d}), ops.transpose(seen(keys)));
  s = ops.view(ops.convert(std::move(s), wide(ops.dtype(q))), {b, h, limit});
  ops.scale_(s, options.scale);
  if (options.softcap > 0) ops.softcap_(s, options.softcap);
  if (options.alibi) add_alibi_(ops, ops.view(s, {b, h, 1, limit}), options, 0);
  ops.add_(s, ops.convert(ops.view(mask, {b, 1, limit}), ops.dtype(s)));
  s = ops.softmax_last(s);
  const T weights = ops.view(ops.convert(std::move(s), ops.dtype(q)), {b * k, -1, limit});
  return ops.view(ops.batch_product(weights, seen(values)), {b, h * d});
}

}  // namespace neap::step
