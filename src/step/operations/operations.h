// The operations that passes use, and their guarantees.
//
// A pass is a function template over `Ops`. The implementation ops::AtenOps computes with libtorch.
// The implementation step::CountingOps creates tensors without contents, requests the same bytes in
// the same order from an allocator, and adds up FLOPs and bytes. A run and its plan differ in
// nothing else.
//
// Tensor    a handle with shared ownership: copies refer to the same memory, which is freed with
//           the last handle. It has size(i) and defined(). An empty handle is not a tensor.
// Memory    each operation's comment in counting_ops.h states what it takes in addition to its
//           result, on the CPU and on CUDA. A test (tests/unit/operations) checks both
//           implementations, for each operation and element type.
// Names     a trailing underscore means that the first argument is written.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/decoding_sizes.h"
#include "spec/model/architecture.h"
#include "spec/ranks/context_parallel.h"
#include "spec/types/mesh.h"
#include "step/operations/shape.h"

namespace neap::step {

template <class T>
struct NormResult {
  T y;           // (N, C)
  T mean, rstd;  // (N, 1); mean is undefined for RMS norms
};

/// How scores become weights.
struct ScoreOptions {
  double scale = 1;
  double softcap = 0;  ///< 0: none
  /// Number of keys that a query attends to, including its own; 0: all up to its own.
  std::int64_t window = 0;
  bool alibi = false;           ///< add spec::alibi_slopes times the key's position
  std::int64_t first_head = 0;  ///< first head of this rank, with tensor parallelism
  std::int64_t all_heads = 0;   ///< heads of the whole model; 0: this rank has all heads
};

/// libtorch's fused kernels, and the matrix products of attention.h.
enum class AttentionKernel : std::uint8_t { kHost, kFlash, kCudnn, kEfficient, kProducts };
/// Whether fused kernels on a GPU support heads of `width`: rows of multiples of 16 bytes, and at
/// most 256 elements.
[[nodiscard]] inline bool fused_width(Dtype dtype, std::int64_t width) {
  return width * element_bytes(dtype) % 16 == 0 && width <= 256;
}
/// The kernel for heads of `width` with plain options. `cudnn`: cuDNN may be used.
[[nodiscard]] inline AttentionKernel fused_kernel(bool cuda, bool cudnn, Dtype dtype,
                                                  std::int64_t width) {
  if (!cuda) return AttentionKernel::kHost;
  if (!fused_width(dtype, width)) return AttentionKernel::kProducts;
  if (dtype == wide(dtype)) return AttentionKernel::kEfficient;
  return cudnn && width <= 128 ? AttentionKernel::kCudnn : AttentionKernel::kFlash;
}

/// Whether a matrix product can be added to a wider type without a temporary. cuBLAS can do it;
/// libtorch's CPU kernels cannot.
[[nodiscard]] inline bool adds_products(bool cuda, Dtype sum, Dtype factors) {
  return sum == factors || (cuda && sum == wide(factors));
}

/// Transformation of a logit l: c tanh(l / c) with a cap c, then a division.
struct LogitShape {
  double softcap = 0;  ///< 0: none
  double divisor = 1;
};

/// How a token is sampled from a row of logits.
struct TokenDraw {
  LogitShape shape{};
  bool largest = false;    ///< only the most likely token
  std::int64_t top_k = 0;  ///< 0: all
  double top_p = 1;
  double min_p = 0;
  /// Whether tokens have to be in order of their probability.
  [[nodiscard]] bool in_order() const { return !largest && (top_k > 0 || top_p < 1 || min_p > 0); }
};

/// The tensors (n,) of a step of AdamW: float32, except the gradient, which may be bfloat16.
template <class T>
struct AdamWTensors {
  T x, average, square, gradient;
  T copy;  ///< bfloat16 copy of x; undefined: none
};

/// An RMS norm of rows, x / rms (weight + offset), as Neap's kernels for decoding take it.
template <class T>
struct RowNorm {
  T weight{};  // undefined: none
  double eps = 0, offset = 0;
};

template <class T>
struct Heads {
  T q;     // (N, H, D)
  T k, v;  // (N, K, D)
  // In decoding, biases that are not added yet, (H * D,) and (K * D,); undefined: none
  T q_bias = {}, k_bias = {}, v_bias = {};
  RowNorm<T> q_norm{}, k_norm{};  // and behind that: of each head
};

/// Keys and values in pages (pages, K, kPageTokens, D), and the places of the pages of rows (B, n), int64
/// (PagedCache).
template <class T>
struct PagedKeys {
  T keys, values, table;
};

/// A norm of rows (N, C).
template <class T>
struct RowsNorm {
  spec::NormKind kind = spec::NormKind::kRms;
  T weight{}, bias{};  // (C,); weight undefined: none; bias undefined: not added
  double eps = 0;
};
/// Matrices (out, in) that multiply the same rows, and their biases (out,). Any may be undefined.
template <class T>
struct FewMatrices {
  std::array<T, kernels::decoding::kMostMatrices> weight{}, bias{};
  RowsNorm<T> norm{};  // of the rows, before they are multiplied
};
/// Adapters of up to three matrices.
template <class T>
struct RowAdapters {
  static constexpr std::size_t kMost = kernels::decoding::kMostAdapters;
  std::array<T, kMost> up{};              // (out, rank); undefined: no adapter
  std::array<std::int64_t, kMost> out{};  // of the matrices
  std::array<double, kMost> scale{};
};

/// The constants of a rotation, on the device.
template <class T>
struct Rotation {
  T frequencies;  // (d / 2,) float32; undefined: no rotation
  double attention_factor = 1;
};

/// The input of one kernel call: spec::AttentionRanges of packed queries and keys.
template <class T>
struct PackedRanges {
  T queries, keys;         // on a GPU: (E + 1,) int32, the start of each range, and the end
  std::int64_t count = 0;  ///< E
  std::int64_t most_queries = 0, most_keys = 0;  ///< per range
  double pairs = 0;  ///< twice the pairs of a query and a key that it attends to
  bool causal = true;
};
/// The queries and keys of one call.
template <class T>
struct ContextCall {
  std::int64_t first_row = 0, rows = 0;  ///< among this rank's rows
  /// Among all tokens; with ring attention, among a rank's rows.
  std::int64_t first_key = 0, keys = 0;
  PackedRanges<T> ranges;
};
/// A rank's attention with context parallelism, as a list of rounds. A round computes the first or
/// the second token ranges, or with ring attention the keys that arrive.
template <class T>
using ContextRounds = std::vector<std::vector<ContextCall<T>>>;

/// The sequences in N rows, one after another: all of one length, or packed without padding. With
/// context parallelism the rows are this rank's (spec/ranks/context_parallel.h).
template <class T>
struct Spans {
  std::int64_t sequences = 0;
  std::int64_t length = 0;              ///< per sequence; packed: the maximum in the job
  std::vector<std::int64_t> lengths{};  ///< packed: per sequence, as whole sequences; else empty
  T starts{};  // packed, on a GPU: (B + 1,) int32, the first row of each sequence, then N
  spec::ContextShard context{};
  // With context parallelism:
  T rows_of_tokens{}, tokens_of_rows{};  // spec::ContextPlaces, if each rank gathers all keys
  std::shared_ptr<const ContextRounds<T>> rounds{};
  [[nodiscard]] bool packed() const { return !lengths.empty(); }
  [[nodiscard]] bool divided() const { return context.ranks > 1; }
  [[nodiscard]] std::int64_t rows() const {
    if (!packed()) return sequences * length;
    std::int64_t n = 0;
    for (const std::int64_t tokens : lengths) n += spec::rows_of_each(tokens, context.ranks);
    return n;
  }
};

/// The state that attention keeps for its backward.
template <class T>
struct AttentionContext {
  Heads<T> heads;
  T out;           // (N, H * D)
  T log_sum;       // (B, H, T), packed (H, N)
  T seed, offset;  ///< of kernels that support dropout
  AttentionKernel kernel = AttentionKernel::kHost;
  ScoreOptions options;
  Spans<T> spans;
  std::vector<AttentionContext> parts;  ///< for packed sequences one by one; without heads and out
};

/// For decoding (step/attention/decoding.h): the keys that one query of each of B sequences attends to.
template <class T>
struct DecodeKeys {
  std::int64_t limit = 0;  ///< host bound on the number of keys per sequence
  std::int64_t read = 0;   ///< maximum that FlashAttention reads
  T mask;                  // (B, limit), added to scores; not used by FlashAttention
  // int32, per packed sequence: its first row of the cache, then the end; its number of keys; and
  // 0, 1, 2, ...
  T starts;  // (S + 1,)
  T used;    // (S,)
  T counts;  // (S + 1,)
};

/// Indices into a rank's share of something that is evenly sharded along an axis.
template <class T>
struct OwnIndices {
  T indices;  // (N,) int64; 0 or the last index for elements of other ranks
  T foreign;  // (N,) bool: belongs to another rank; undefined: none does
};

template <class T>
struct Sorted {
  T values;  // (B, V), descending
  T order;   // (B, V) int64
};

/// Row stride of a decode_mask, in elements: kernels copy a mask whose rows do not start at
/// multiples of 16 bytes.
[[nodiscard]] constexpr std::int64_t decode_mask_stride(std::int64_t keys) {
  return (keys + 15) / 16 * 16;
}

/// Length of a rounding_noise, 16 MiB. Further elements reuse its numbers, modified.
constexpr std::int64_t kNoise = std::int64_t{1} << 22;

inline ScoreOptions score_options(const spec::Architecture& a, std::int64_t layer) {
  return {
      a.attention_scale > 0 ? a.attention_scale : 1 / std::sqrt(static_cast<double>(a.head_dim)),
      a.attention_softcap,
      a.window_of(layer),
      a.alibi,
      a.tensor.rank * a.num_attention_heads,
      a.tensor.ranks * a.num_attention_heads};
}

}  // namespace neap::step
