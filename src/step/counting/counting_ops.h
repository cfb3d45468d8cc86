// The operations of step/operations/operations.h without contents: only sizes, lifetimes and costs
// (work_meter.h).
//
// A counted tensor requests its bytes from a MemorySink when it is created, and returns them with
// its last handle, as a tensor's storage does. So a pass over these operations makes the requests
// of a real run in the same order.
//
// Threads   a sink, its operations and its tensors belong to one thread.
// Failure   none; a sink that runs out of memory records it, and returns meaningless addresses.
// Cost      about 50 ns per operation, plus the sink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "spec/job/job.h"
#include "step/attention/decoding.h"
#include "step/counting/counted_graphs.h"
#include "step/counting/counted_work.h"
#include "step/counting/counting_base.h"
#include "step/counting/cuda_scratch.h"
#include "step/counting/scratch_places.h"
#include "step/operations/fp8.h"
#include "step/operations/operations.h"

namespace neap::step {

class CountingOps : public CountingBase {
 public:
  /// `sink` must outlive the operations and their tensors. `most_repeats` is as in WorkMeter.
  CountingOps(MemorySink& sink, const KernelProfile& profile, std::int64_t most_repeats)
      : CountingBase(sink, profile, most_repeats),
        cudnn_(!profile.deterministic),
        fp8_(profile.fp8) {}

  /// Runs body() with the kernels of generation. Lengths change with every call, so cuDNN would plan
  /// kernels again. Products of few rows take as long as to read their matrices, so fp8 gains nothing.
  template <class Body>
  auto generating(const Body& body) {
    const bool cudnn = std::exchange(cudnn_, false), fp8 = std::exchange(fp8_, false);
    auto result = body();
    cudnn_ = cudnn;
    fp8_ = fp8;
    return result;
  }

  // ---- graphs (step/generation/decode_graphs.h) ----
  [[nodiscard]] bool graphs() const { return profile().graphs; }
  /// Runs body(), which a run captures and replays. Its tensors have places of their own, and no other operation waits
  /// for the host.
  template <class Body>
  void graphed(const GraphKey& key, const Body& body) {
    ScratchSink scratch;
    MemorySink* const before = std::exchange(sink_, &scratch);
    const double kernels = in_graph(body);
    sink_ = before;
    graphs_made_.add(key, scratch.extent(), kernels);
  }
  /// The graphs of all bodies so far.
  [[nodiscard]] const CountedGraphs& graphs_made() const { return graphs_made_; }

  // ---- stages of a pipeline ----
  /// Sends to another stage. It waits until that stage receives, and takes no memory.
  void send(const Tensor&, std::int64_t) const {}
  /// Receives from another stage into a tensor of the same shape and type.
  void receive_(const Tensor&, std::int64_t) const {}
  /// The values of all stages, in order; here, only this stage's.
  [[nodiscard]] std::vector<double> join_stages(const std::vector<double>& mine) const {
    return mine;
  }

  // ---- ranks of an axis: no work and no memory for an axis of size one ----
  [[nodiscard]] std::int64_t ranks(spec::Axis axis) const {
    if (axis == spec::Axis::kContext) return profile().context_ranks;
    return axis == spec::Axis::kTensor ? profile().tensor_ranks : 1;
  }
  /// `a` becomes the sum, or the maximum, over ranks, element by element.
  void sum_over_(const Tensor& a, spec::Axis axis) { reduce_over(bytes(a), axis); }
  void max_over_(const Tensor& a, spec::Axis axis) { reduce_over(bytes(a), axis); }
  /// The sum over ranks of a number, through a tensor with one float64.
  [[nodiscard]] double total_over(double x, spec::Axis axis);
  /// a (n, m) of each rank -> (n, ranks * m), in the order of ranks; `a` itself for one rank. A
  /// buffer of the result's size is used.
  [[nodiscard]] Tensor join_columns(Tensor a, spec::Axis axis);
  /// The inverse: this rank's columns, as a copy.
  [[nodiscard]] Tensor own_columns(const Tensor& a, spec::Axis axis);
  // With N rows, each rank has n = ceil(N / ranks) rows. Rows of the last ranks may be padding.
  /// a (n, ...) of each rank -> (ranks * n, ...), in the order of ranks; `a` itself for one rank.
  [[nodiscard]] Tensor join_rows(const Tensor& a, spec::Axis axis);
  /// A shift along a ring: when it completes, and the bytes that a rank sends.
  struct Shift {
    double end = 0, sent = 0;
  };
  /// Starts a shift along a ring of several ranks. It sends `mine` to the next rank; the last rank
  /// sends to the first. It receives the previous rank's tensor, of the same shape and type, in
  /// `theirs`. The caller must not touch either until finish_shift(), after which later computation
  /// waits for it. On a GPU it overlaps with computation. It takes no memory.
  [[nodiscard]] Shift begin_shift(const Tensor& mine, const Tensor& theirs, spec::Axis axis);
  void finish_shift(const Shift& shift, spec::Axis axis);
  /// Call it after the last of several shifts.
  void end_shifts(spec::Axis) const {}
  /// This rank's rows (n, ...) of a (N, ...), as a copy; padding is zero.
  [[nodiscard]] Tensor own_rows(const Tensor& a, spec::Axis axis);
  /// This rank's rows of the sum over ranks of a (N, ...), which becomes undefined.
  [[nodiscard]] Tensor sum_to_rows(const Tensor& a, spec::Axis axis);
  /// Converts indices (n,) over all ranks to indices into this rank's `count` elements. It also
  /// takes a second boolean of their size.
  [[nodiscard]] OwnIndices<Tensor> own_indices(const Tensor& indices, std::int64_t count,
                                               spec::Axis axis);
  /// Zeroes the rows of other ranks: a (n,) or (n, m). Does nothing if `foreign` is undefined.
  void clear_(const Tensor& a, const Tensor& foreign);
  /// As clear_(), on a copy; `a` itself if `foreign` is undefined.
  [[nodiscard]] Tensor cleared(const Tensor& a, const Tensor& foreign);

  // ---- products ----
  [[nodiscard]] Tensor product(const Tensor& a, const Tensor& b);
  [[nodiscard]] Tensor product_plus(const Tensor& bias, const Tensor& a, const Tensor& b);
  /// c may have a wider type than a and b if adds_products() says so.
  void add_product_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha);
  [[nodiscard]] bool adds_products(Dtype sum, Dtype factors) const {
    return step::adds_products(profile().cuda, sum, factors);
  }
  /// a (n, m, k) times b (n, k, p): (n, m, p).
  [[nodiscard]] Tensor batch_product(const Tensor& a, const Tensor& b);

  // ---- products in fp8 (step/operations/fp8.h) ----
  /// Whether products with matrices of blocks are in fp8.
  [[nodiscard]] bool fp8() const { return fp8_; }
  /// Makes those copies of x (m, n) that are missing. On a GPU, without a scale, each thread block takes
  /// a float32 for its largest value.
  void to_fp8(Fp8Copies<Tensor>& copies, const Tensor& x, Fp8Format format, Fp8Sides sides);
  /// a (m, k) times b (n, k) transposed, plus a bias (n,) that may be undefined: (m, n). At most one
  /// factor is e5m2.
  [[nodiscard]] Tensor fp8_product(const Fp8Factor<Tensor>& a, const Fp8Factor<Tensor>& b,
                                   Dtype dtype, Fp8Sums, const Tensor& bias);

  // ---- Neap's kernels on a GPU: in place of other operations of step/model/mlp_half.h,
  // step/model/block_parts.h, step/model/head.h and step/units/optimizer.h ----
  [[nodiscard]] bool own_kernels(Dtype dtype) const { return profile().own.take(dtype); }
  /// out (N, F) = activate(gate) * up. `out` may alias `gate`. Rows may have strides.
  void gate_into(const Tensor& out, const Tensor& gate, const Tensor&, spec::Activation) {
    add_traffic(2 * bytes(gate) + bytes(out));
  }
  /// The gradients of gate and up from d (N, F), that of the product. d_gate may alias d.
  void gate_backward_into(const Tensor& d_gate, const Tensor& d_up, const Tensor& d, const Tensor&,
                          const Tensor&, spec::Activation) {
    add_traffic(3 * bytes(d) + bytes(d_gate) + bytes(d_up));
  }
  /// x (N, in) times each matrix of w (n, out, in): (n, N, out).
  [[nodiscard]] Tensor products(const Tensor& x, const Tensor& w);
  /// The norm of x (N, C); then x += `added` (C,). `added` and the norm's bias may be undefined.
  [[nodiscard]] Tensor norm_and_add_(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                                     const Tensor& bias, double eps, const Tensor& added);
  /// Decoding: adds the biases, normalizes queries and keys if `heads` has norms, rotates them, and
  /// writes keys and values (B, K, D) at positions (B,) of the cache's first rows. Returns the
  /// queries (B, H, D). Rows of heads may have strides.
  [[nodiscard]] Tensor append_(const Tensor& keys, const Tensor& values, const Tensor& positions,
                               const Heads<Tensor>& heads, const Rotation<Tensor>& rotation);
  [[nodiscard]] bool attends_itself(Dtype dtype, const DecodeSizes& sizes,
                                    const ScoreOptions& options) const {
    return decodes_by_own(profile().own, options, cuda(), dtype, sizes);
  }
  /// append_(), then decode_attention() of the queries: (B, H * D). Keys are divided into
  /// attend_shares(), whose float32 sums take memory.
  [[nodiscard]] Tensor append_and_attend_(const Tensor& keys, const Tensor& values,
                                          const Tensor& positions, const Heads<Tensor>& heads,
                                          const Rotation<Tensor>& rotation, const KeyLimit& limit,
                                          const ScoreOptions& options);
  /// The same for keys and values in pages.
  [[nodiscard]] Tensor append_and_attend_pages_(const PagedKeys<Tensor>& cache,
                                                const Tensor& positions, const Heads<Tensor>& heads,
                                                const Rotation<Tensor>& rotation,
                                                const KeyLimit& limit, const ScoreOptions& options);
  [[nodiscard]] bool own_few_rows(Dtype dtype, std::int64_t rows, std::int64_t in,
                                  std::int64_t out) const {
    return profile().own.row_product(dtype, rows, in, out) != RowProduct::kLibrary;
  }
  [[nodiscard]] bool own_normed_rows(Dtype dtype, std::int64_t rows, std::int64_t in,
                                     std::int64_t out) const {
    return profile().own.normalizes(dtype, rows, in, out);
  }
  /// x (N, in), or its norm, times each of the matrices (out, in); a row has their results side by side.
  /// Requires own_few_rows(), with a norm own_normed_rows(). Biases may be undefined.
  [[nodiscard]] Tensor few_rows_products(const Tensor& x, const FewMatrices<Tensor>& by);
  /// The same for one matrix, followed by an activation.
  [[nodiscard]] Tensor few_rows_activated(const Tensor& x, const FewMatrices<Tensor>& by,
                                          spec::Activation kind);
  /// sum (N, out) += x w^T + bias, which may be undefined.
  void add_few_rows_(const Tensor& sum, const Tensor& x, const Tensor& w, const Tensor& bias);
  /// act(x gate^T) (x up^T), from gate and up (F, in), the first two matrices: (N, F).
  [[nodiscard]] Tensor few_rows_gated(const Tensor& x, const FewMatrices<Tensor>& by,
                                      spec::Activation kind);
  /// Decoding with adapters. y (N, all out + all ranks) has the products of x with up to three matrices,
  /// then those with the adapters' first matrices. Adds the products of these with the second ones to the
  /// first columns.
  void add_row_adapters_(const Tensor& y, const RowAdapters<Tensor>& by);
  /// The same of one matrix, added to sum (N, out).
  void add_adapted_rows_(const Tensor& sum, const Tensor& y, const RowAdapters<Tensor>& by);
  /// The same of two matrices, act(the first's) (the second's): (N, F).
  [[nodiscard]] Tensor gate_adapted_rows(const Tensor& y, const RowAdapters<Tensor>& by,
                                         spec::Activation kind);
  /// Writes float32 (n,) from logits (n, V) and targets (n,): log p of the target, log sum exp,
  /// entropy, and 1 if no logit exceeds the target's, else 0. The last two may be undefined.
  void logit_values_into(const Tensor& log_probs, const Tensor& log_sums, const Tensor& entropies,
                         const Tensor& rights, const Tensor& logits, const Tensor& targets,
                         const LogitShape& shape);
  /// Replaces logits (n, V) by a loss's gradient with respect to them, given those with respect to
  /// log p and to entropy. The latter may be undefined.
  void logit_gradient_(const Tensor& logits, const Tensor& targets, const Tensor& log_sums,
                       const Tensor& d_log_probs, const Tensor& entropies,
                       const Tensor& d_entropies, const LogitShape& shape);

  [[nodiscard]] bool own_draw(Dtype dtype, std::int64_t columns, bool in_order) const {
    return profile().own.draw(dtype, columns, in_order);
  }
  /// Samples tokens (n,) from logits (n, V) with uniforms (n,). log_probs, float32 or undefined,
  /// are those before top_k, top_p and min_p. For `scratch` see step/operations/own_kernels.h.
  void draw_into(const Tensor& tokens, const Tensor& log_probs, const Tensor& scratch,
                 const Tensor& logits, const Tensor& uniforms, const TokenDraw& by);
  [[nodiscard]] bool own_norm_rows(Dtype dtype, std::int64_t columns) const {
    return profile().own.norm_rows(dtype, columns);
  }
  /// norm_backward() of an RMS norm, plus `added`, which may be undefined. d_weight takes a float32
  /// row per thread block.
  [[nodiscard]] Tensor own_rms_norm_backward(spec::NormKind kind, const Tensor& dy, const Tensor& x,
                                             const Tensor& rstd, const Tensor& weight,
                                             const Tensor& d_weight, const Tensor& added);
  /// One step of torch.optim.AdamW from the gradient times `scale`. `step` counts from 1.
  void own_adamw_(const AdamWTensors<Tensor>& t, double scale, std::int64_t step, double lr,
                  const spec::OptimizerConfig&);

  // ---- reductions ----
  [[nodiscard]] Tensor sum(const Tensor& a);       ///< all: ()
  [[nodiscard]] Tensor sum_last(const Tensor& a);  ///< (..., n) -> (...)
  [[nodiscard]] Tensor max_last(const Tensor& a);  ///< (R, n) -> (R, 1)
  [[nodiscard]] Tensor max_rows(const Tensor& a);  ///< (R, n) -> (n,)
  /// (n, ...) -> (...), summed in `dtype`. On the CPU a wider type first converts `a`. On CUDA,
  /// blocks that share a column use partial sums (cuda_scratch.h).
  [[nodiscard]] Tensor sum_rows(const Tensor& a, Dtype dtype);
  [[nodiscard]] Tensor argmax_last(const Tensor& a);  ///< (R, n) -> (R,) int64
  [[nodiscard]] Tensor softmax_last(const Tensor& a) { return unary(a); }
  [[nodiscard]] Sorted<Tensor> sort_descending(const Tensor& a);
  void cumulate_last_(const Tensor& a);
  /// Zeroes elements after a cumulative probability of top_p; the first element stays.
  void drop_beyond_mass_(const Tensor& a, double top_p);
  /// Zeroes elements below this fraction of the row's maximum.
  void drop_below_(const Tensor& a, double share);
  /// a (R, V), seen (R, U) int64, amounts (R, U): applies the penalties of SamplingOptions.
  void penalize_(const Tensor& a, const Tensor& seen, const Tensor& amounts, double repetition);
  /// The first index of each row whose value exceeds target (R, 1): (R, 1) int64.
  [[nodiscard]] Tensor search_last(const Tensor& a, const Tensor& target);

  // ---- indices ----
  /// table (V, C) at indices (N,) -> (N, C).
  [[nodiscard]] Tensor take_rows(const Tensor& table, const Tensor& indices);
  /// As take_rows(), for a table and indices in host memory. The rows are copied to the device.
  [[nodiscard]] Tensor take_rows_from_host(const Tensor& table, const Tensor& indices);
  /// table (V, C) at indices (N,) += rows (N, C). Rows are first converted to the table's type.
  /// Results are deterministic on every device.
  void add_to_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows);
  /// table (V, C) at indices (N,), all different, = rows (N, C), of the table's dtype.
  void put_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows);
  /// table (M, D) at places (N, K) = heads (N, K, D). One of those at the same place stays.
  void put_heads_(const Tensor& table, const Tensor& places, const Tensor& heads);
  /// Writes values of the host to a tensor of as many int64.
  void put_numbers_(const Tensor&, const std::vector<std::int64_t>&) {}
  /// The places (B, K) of the heads of tokens at positions (B,), in pages viewed as rows of D. `table`
  /// (B, n) has the places of each row's pages (PagedCache).
  [[nodiscard]] Tensor page_places(const Tensor& table, const Tensor& positions,
                                   std::int64_t key_heads);
  /// Each head's pages of these rows in pages viewed as (pages * K, kPageTokens * D): (B * K * n,).
  [[nodiscard]] Tensor page_parts(const Tensor& table, std::int64_t key_heads);
  /// a (R, V) at indices (R,) -> (R,).
  [[nodiscard]] Tensor gather_last(const Tensor& a, const Tensor& indices);
  /// a (R, V) at indices (R,) += values (R,).
  void add_to_last_(const Tensor& a, const Tensor& indices, const Tensor& values);
  /// b * length + lengths[b] - 1: (B,) int64.
  [[nodiscard]] Tensor last_rows(const Tensor& lengths, std::int64_t length);

  // ---- kernels ----
  [[nodiscard]] NormResult<Tensor> norm(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                                        const Tensor& bias, double eps);
  /// dx; adds to d_weight and d_bias if they are defined.
  [[nodiscard]] Tensor norm_backward(spec::NormKind kind, const Tensor& dy, const Tensor& x,
                                     const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                                     const Tensor& d_weight, const Tensor& d_bias);
  /// Rotates the first dimensions of x (N, H, D) by cos and sin (P, d / 2), in half-split form. N
  /// must be a multiple of P.
  [[nodiscard]] Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse);
  /// Causal attention within each sequence. With a cap, or a window that hides keys, it takes the
  /// memory of attention.h; otherwise that of its kernel.
  [[nodiscard]] AttentionContext<Tensor> attention(Heads<Tensor> heads, const Spans<Tensor>& spans,
                                                   const ScoreOptions& options);
  /// The same with `kernel`, which takes packed sequences together or one sequence.
  [[nodiscard]] AttentionContext<Tensor> attention_by(AttentionKernel kernel, Heads<Tensor> heads,
                                                      const Spans<Tensor>& spans,
                                                      const ScoreOptions& options);
  /// FlashAttention of q (n, H, D), k and v (m, K, D), range by range. `out` is zero for a row
  /// without keys, and `log_sum` (H, n) is minus infinity, which takes a boolean. Only on a GPU,
  /// for supported options.
  [[nodiscard]] AttentionContext<Tensor> attention_of_ranges(const Heads<Tensor>& heads,
                                                             const PackedRanges<Tensor>& ranges,
                                                             const ScoreOptions& options);
  /// From d_out (n, H * D). Saved results may cover all keys of a row, while `ranges` has only some
  /// of them.
  [[nodiscard]] Heads<Tensor> attention_of_ranges_backward(AttentionContext<Tensor> saved,
                                                           const PackedRanges<Tensor>& ranges,
                                                           Tensor d_out);
  /// Starts of packed sequences for kernels: (B + 1,) int32 on a GPU, undefined elsewhere.
  [[nodiscard]] Tensor starts_of(const std::vector<std::int64_t>& lengths);
  /// spec::context_places() for sequences of these lengths: its rows and its tokens, int64.
  [[nodiscard]] std::pair<Tensor, Tensor> places_of(const std::vector<std::int64_t>& lengths,
                                                    std::int64_t ranks);
  /// From d_out (N, H * D).
  [[nodiscard]] Heads<Tensor> attention_backward(AttentionContext<Tensor> saved, Tensor d_out);
  /// (queries, keys) bool: whether a query attends to a key. Query i is at position `offset` + i
  /// from the first key. window 0: all keys up to its position.
  [[nodiscard]] Tensor causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t offset,
                                   std::int64_t window);
  /// Sets a (n, r, m) to minus infinity where mask, (r, m) or (n, 1, m), is false.
  void hide_(const Tensor& a, const Tensor& mask);
  /// positions (B,) -> (B, key_limit), which is added to scores: zero for the last `window` keys up
  /// to the position (0: for all), minus infinity elsewhere. Rows have the stride that kernels
  /// require.
  [[nodiscard]] Tensor decode_mask(const Tensor& positions, std::int64_t key_limit,
                                   std::int64_t window, Dtype dtype);
  /// The data about keys that decode_attention needs with `heads` query heads. They are the keys up
  /// to positions (B,), in a cache (B', K, T, D). All positions are below `key_limit`. It is
  /// computed once per step for all blocks with these options.
  [[nodiscard]] DecodeKeys<Tensor> decode_keys(const Tensor& positions, const Tensor& cache,
                                               std::int64_t heads, std::int64_t key_limit,
                                               const ScoreOptions& options);
  /// q (B, H, D) attends to keys of the cache: (B, H * D). Masks have q's type.
  [[nodiscard]] Tensor decode_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                        const DecodeKeys<Tensor>& seen,
                                        const ScoreOptions& options);
  /// The last n tokens of a sequence, q (n, H, D), attend to its keys and values (1, K, T, D): (n,
  /// H * D).
  [[nodiscard]] Tensor chunk_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                       const ScoreOptions& options);
  /// Writes rows (B' * length, K, D) to the first positions of the cache's `slots`.
  void write_prompts_(const Tensor& cache, const Tensor& slots, const Tensor& rows,
                      std::int64_t length);
  /// Writes rows (B, K, D) at positions (B,).
  void write_token_(const Tensor& cache, const Tensor& positions, const Tensor& rows);

  // ---- optimizer ----
  /// sqrt(sum a^2) in float32, or in float64 for float64: ().
  [[nodiscard]] Tensor norm_of(const Tensor& a);
  [[nodiscard]] Tensor filled_like(const Tensor&, double) { return make({}, Dtype::kFloat32); }
  /// One step of torch.optim.AdamW on tensors (n,) of one type. count () is the step number.
  void fused_adamw_(const Tensor& x, const Tensor& g, const Tensor& average, const Tensor& square,
                    const Tensor& count, double lr, const spec::OptimizerConfig&);
  /// One step of torch.optim.SGD. `momentum` may be undefined.
  void fused_sgd_(const Tensor& x, const Tensor& g, const Tensor& momentum, double lr,
                  const spec::OptimizerConfig&);
  /// Random numbers below 2^16 as int32: (n,). Number i is a function of the key and i. On CUDA it
  /// takes a second buffer of the same size.
  [[nodiscard]] Tensor rounding_noise(std::uint64_t key, std::int64_t n);
  /// to (bfloat16) = value (float32), contiguous, rounded up or down at random such that the mean
  /// is exact. The random number of element i depends on the key, on its number first + i, and on
  /// `noise` (kNoise numbers, or as many as the tensor has elements). On CUDA it takes a buffer of
  /// int32 with at most kNoise elements.
  void round_stochastically_(const Tensor& to, const Tensor& value, const Tensor& noise,
                             std::uint64_t key, std::int64_t first);

 private:
  /// Attention of Neap's kernel to cached keys; `page_seconds`: to look up a page.
  [[nodiscard]] Tensor attend_cached(const Tensor& keys, const Heads<Tensor>& heads,
                                     const KeyLimit& limit, const ScoreOptions& options,
                                     double page_seconds);
  /// A product of few rows with matrices of `elements` elements.
  void add_few_rows(const Tensor& x, double elements, double out_bytes);
  void add_adapters(const Tensor& y, const RowAdapters<Tensor>& by, double out_bytes);
  void reduce_over(double bytes, spec::Axis axis);
  std::pair<Tensor, Tensor> flash_forward_scratch(const FlashSplits& splits, bool packed);
  void attention_backward_scratch(AttentionKernel kernel, const AttentionSizes& sizes, Dtype dtype);
  [[nodiscard]] Heads<Tensor> efficient_attention_backward(AttentionContext<Tensor> saved,
                                                           Tensor d_out,
                                                           const AttentionSizes& sizes);
  void sum_of_one_scratch(const Tensor& row);
  void reduction_scratch(const ReductionScratch& scratch);
  [[nodiscard]] Tensor rms_norm_backward_on_host(const Tensor& dy, const Tensor& x, bool trained);

  bool cudnn_;  ///< attention may use its kernels
  bool fp8_;
  CountedGraphs graphs_made_;
  double shifted_ = 0;  // when all shifts so far are complete
};

}  // namespace neap::step
