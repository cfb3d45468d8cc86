// The operations that passes use, and what each guarantees.
//
// A pass is a function template over `Ops`. ops::AtenOps computes with libtorch;
// step::CountingOps makes tensors without contents, asks an allocator for the same bytes in the
// same order, and adds up FLOPs and bytes. Nothing else differs between a run and its plan.
//
// Tensor    a handle with shared ownership: copies refer to the same memory, which is freed
//           with the last handle. size(i), defined(). An empty handle is no tensor.
// Memory    each operation's comment in counting_ops.h says what it takes in addition to its
//           result, on the host and on CUDA. tests/unit/operations checks both implementations, for
//           each operation and element type.
// Names     a trailing underscore writes into the first argument.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "spec/architecture.h"
#include "spec/context_parallel.h"
#include "spec/mesh.h"
#include "step/shape.h"

namespace neap::step {

template <class T>
struct NormResult {
  T y;           // (N, C)
  T mean, rstd;  // (N, 1); mean undefined for RMS norms
};

/// How scores become weights.
struct ScoreOptions {
  double scale = 1;
  double softcap = 0;  ///< 0: none
  std::int64_t window =
      0;  ///< keys that a query attends to, its own included; 0: all before and its own
  bool alibi = false;           ///< spec::alibi_slopes times the key's place is added
  std::int64_t first_head = 0;  ///< that this rank has, where several divide the heads
  std::int64_t all_heads = 0;   ///< of the model; 0: this rank has them all
};

/// libtorch's fused kernels, and the matrix products of attention.h.
enum class AttentionKernel : std::uint8_t { kHost, kFlash, kCudnn, kEfficient, kProducts };
/// Whether fused kernels on a GPU take heads of `width`: rows of 16 bytes, at most 256 elements.
[[nodiscard]] inline bool fused_width(Dtype dtype, std::int64_t width) {
  return width * element_bytes(dtype) % 16 == 0 && width <= 256;
}
/// The kernel for heads of `width` where the options are plain; `cudnn`: where it may be taken.
[[nodiscard]] inline AttentionKernel fused_kernel(bool cuda, bool cudnn, Dtype dtype,
                                                  std::int64_t width) {
  if (!cuda) return AttentionKernel::kHost;
  if (!fused_width(dtype, width)) return AttentionKernel::kProducts;
  if (dtype == wide(dtype)) return AttentionKernel::kEfficient;
  return cudnn && width <= 128 ? AttentionKernel::kCudnn : AttentionKernel::kFlash;
}

/// Whether a product of matrices is added to one of a wider type without a temporary: cuBLAS does it, libtorch's CPU
/// kernels do not.
[[nodiscard]] inline bool adds_products(bool cuda, Dtype sum, Dtype factors) {
  return sum == factors || (cuda && sum == wide(factors));
}

template <class T>
struct Heads {
  T q;     // (N, H, D)
  T k, v;  // (N, K, D)
};

/// What a kernel takes in one call: spec::AttentionRanges of packed queries and keys.
template <class T>
struct PackedRanges {
  T queries, keys;         // on a GPU: (E + 1,) int32, where each range begins, and the end
  std::int64_t count = 0;  ///< E
  std::int64_t most_queries = 0, most_keys = 0;  ///< of a range
  double pairs = 0;                              ///< of a query and a key that it sees, twice
  bool causal = true;
};
/// Where its queries and keys are.
template <class T>
struct ContextCall {
  std::int64_t first_row = 0, rows = 0;  ///< of this rank's
  std::int64_t first_key = 0, keys = 0;  ///< of all tokens or, in a ring, of a rank's rows
  PackedRanges<T> ranges;
};
/// A rank's attention where ranks divide sequences, one round after another: of its first ranges and its second ones,
/// or of the keys that a ring brings.
template <class T>
using ContextRounds = std::vector<std::vector<ContextCall<T>>>;

/// The sequences that N rows are, one after another: of one length each, or packed without padding. Where ranks
/// divide the tokens of packed ones, the rows are this rank's (spec/context_parallel.h).
template <class T>
struct Spans {
  std::int64_t sequences = 0;
  std::int64_t length = 0;              ///< of each; packed: the most that a job's may have
  std::vector<std::int64_t> lengths{};  ///< packed: of each, whole; else empty
  T starts{};  // packed, on a GPU: (B + 1,) int32, the first row of each and N
  spec::ContextShard context{};
  // Of ranks that divide sequences:
  T rows_of_tokens{}, tokens_of_rows{};  // spec::ContextPlaces, where each gathers all keys
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

/// What attention leaves for its backward.
template <class T>
struct AttentionContext {
  Heads<T> heads;
  T out;           // (N, H * D)
  T log_sum;       // (B, H, T), packed (H, N)
  T seed, offset;  ///< of kernels that could drop scores out
  AttentionKernel kernel = AttentionKernel::kHost;
  ScoreOptions options;
  Spans<T> spans;
  std::vector<AttentionContext> parts;  ///< of packed sequences in turn, without heads and out
};

/// The keys that one query of each of B sequences attends to, for the kernel that decodes (step/decoding.h).
template <class T>
struct DecodeKeys {
  std::int64_t limit = 0;  ///< host bound on the keys of a sequence
  T mask;                  // (B, limit), added to scores; FlashAttention has none
  // Of each packed sequence, int32: number of the first row of the cache and one more, number of keys, and 0, 1, 2, ...
  T starts;  // (S + 1,)
  T used;    // (S,)
  T counts;  // (S + 1,)
};

/// Places in a rank's part of something that the ranks of an axis divide evenly.
template <class T>
struct OwnIndices {
  T indices;  // (N,) int64; 0 or the last one for those of other ranks
  T foreign;  // (N,) bool: of other ranks; undefined: none are
};

template <class T>
struct Sorted {
  T values;  // (B, V), descending
  T order;   // (B, V) int64
};

/// Elements from row to row of a decode_mask: kernels copy a mask whose rows do not start at multiples
/// of 16 bytes.
[[nodiscard]] constexpr std::int64_t decode_mask_stride(std::int64_t keys) {
  return (keys + 15) / 16 * 16;
}

/// Numbers of a rounding_noise; elements beyond them use them again, changed: 16 MiB.
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
