// The operations of step/operations.h without contents: sizes, lifetimes and costs only (work_meter.h).
//
// A counted tensor asks a MemorySink for its bytes when it is made and gives them back when its
// last handle dies, as a tensor's storage does. Run through these operations, a pass makes the
// requests of a real run in the same order.
//
// Threads   one sink, its operations and its tensors belong to one thread.
// Failure   none; a sink that runs out hands out addresses that mean nothing and remembers it.
// Cost      about 50 ns an operation and what the sink takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "spec/job.h"
#include "step/counted_tensor.h"
#include "step/counted_work.h"
#include "step/cuda_scratch.h"
#include "step/operations.h"
#include "step/work_meter.h"

namespace neap::step {

class CountingOps : public WorkMeter {
 public:
  using Tensor = CountedTensor;
  /// `sink` outlives the operations and their tensors. `most_repeats`: as of WorkMeter.
  CountingOps(MemorySink& sink, const KernelProfile& profile, std::int64_t most_repeats)
      : WorkMeter(profile, most_repeats), sink_(sink), cudnn_(!profile.deterministic) {}

  /// body(), with the attention kernels of generation: its lengths change from call to call.
  template <class Body>
  auto generating(const Body& body) {
    const bool before = std::exchange(cudnn_, false);
    auto result = body();
    cudnn_ = before;
    return result;
  }

  // ---- stages of a pipeline ----
  /// To another stage. It waits until that one receives, and takes no memory.
  void send(const Tensor&, std::int64_t) const {}
  /// What another stage sends, into a tensor of its shape and type.
  void receive_(const Tensor&, std::int64_t) const {}
  /// The values of all stages, in their order; counted ones are this stage's.
  [[nodiscard]] std::vector<double> join_stages(const std::vector<double>& mine) const {
    return mine;
  }

  // ---- ranks of an axis: nothing happens, and nothing is taken, where there is one ----
  [[nodiscard]] std::int64_t ranks(spec::Axis axis) const {
    if (axis == spec::Axis::kContext) return profile().context_ranks;
    return axis == spec::Axis::kTensor ? profile().tensor_ranks : 1;
  }
  /// `a` becomes the sum, or the largest, of all ranks' element by element.
  void sum_over_(const Tensor& a, spec::Axis axis) { reduce_over(bytes(a), axis); }
  void max_over_(const Tensor& a, spec::Axis axis) { reduce_over(bytes(a), axis); }
  /// The sum of all ranks' numbers, through a tensor of one float64.
  [[nodiscard]] double total_over(double x, spec::Axis axis);
  /// a (n, m) of each rank -> (n, ranks * m), in the order of the ranks; `a` itself of one rank. They are
  /// gathered in a buffer of the result's size.
  [[nodiscard]] Tensor join_columns(Tensor a, spec::Axis axis);
  /// The inverse: this rank's columns, as a copy.
  [[nodiscard]] Tensor own_columns(const Tensor& a, spec::Axis axis);
  // Of rows each rank has as many: n = ceil(N / ranks), of which the last ranks' may be padding.
  /// a (n, ...) of each rank -> (ranks * n, ...), in the order of the ranks; `a` itself of one rank.
  [[nodiscard]] Tensor join_rows(const Tensor& a, spec::Axis axis);
  /// A shift along a ring: when it has come, and what a rank sends.
  struct Shift {
    double end = 0, sent = 0;
  };
  /// Begins to send `mine` to the next rank of several, of the last one to the first, and to receive in `theirs`, of
  /// its shape and type, what the one before sends. Both belong to it until finish_shift(), behind which what is
  /// computed waits for it. On a GPU it goes on meanwhile. It takes no memory.
  [[nodiscard]] Shift begin_shift(const Tensor& mine, const Tensor& theirs, spec::Axis axis);
  void finish_shift(const Shift& shift, spec::Axis axis);
  /// Behind the last one of several.
  void end_shifts(spec::Axis) const {}
  /// This rank's rows (n, ...) of a (N, ...), as a copy; padding is zero.
  [[nodiscard]] Tensor own_rows(const Tensor& a, spec::Axis axis);
  /// Those of the sum of all ranks' a (N, ...), which is undefined then.
  [[nodiscard]] Tensor sum_to_rows(const Tensor& a, spec::Axis axis);
  /// Of indices (n,) into what ranks divide those into this rank's `count`. A second boolean of their size
  /// is taken.
  [[nodiscard]] OwnIndices<Tensor> own_indices(const Tensor& indices, std::int64_t count,
                                               spec::Axis axis);
  /// Zero for the rows of other ranks: a (n,) or (n, m). Nothing where `foreign` is undefined.
  void clear_(const Tensor& a, const Tensor& foreign);
  /// The same of a copy; `a` itself where `foreign` is undefined.
  [[nodiscard]] Tensor cleared(const Tensor& a, const Tensor& foreign);

  // ---- making ----
  [[nodiscard]] Dtype dtype(const Tensor& t) const { return t.dtype(); }
  [[nodiscard]] Tensor empty(const Shape& shape, Dtype dtype) { return make(shape, dtype); }
  [[nodiscard]] Tensor zeros(const Shape& shape, Dtype dtype) { return make(shape, dtype); }
  [[nodiscard]] Tensor ones_like(const Tensor& t) { return make(t.shape(), t.dtype()); }
  [[nodiscard]] Tensor clone(const Tensor& t) { return make(t.shape(), t.dtype()); }
  /// 0, stride, 2 stride ... (n,) int64.
  [[nodiscard]] Tensor iota(std::int64_t n, std::int64_t stride = 1);
  [[nodiscard]] Tensor from_host(const std::vector<float>& values);
  [[nodiscard]] Tensor from_host(const std::vector<std::int64_t>& values);
  /// A host tensor on the device; no copy is made if the device is the host.
  [[nodiscard]] Tensor to_device(const Tensor& t);
  /// A copy outside the phase's memory.
  [[nodiscard]] Tensor to_host(const Tensor& t);
  /// The same that only from_pinned() reads: on a GPU nothing waits for it.
  [[nodiscard]] Tensor to_pinned(const Tensor& t);
  /// It on the device; no copy is made if the device is the host.
  [[nodiscard]] Tensor from_pinned(const Tensor& t);
  /// The value of a tensor of one element; a counted one is 1.
  [[nodiscard]] double read(const Tensor&) const { return 1; }
  /// The values of a tensor (n,), through memory of the host.
  [[nodiscard]] std::vector<double> read_all(const Tensor& t) const {
    return std::vector<double>(static_cast<std::size_t>(t.size(0)), 1);
  }

  // ---- views ----
  [[nodiscard]] Tensor view(const Tensor& t, Shape shape);  ///< one size may be -1
  [[nodiscard]] Tensor transpose(const Tensor& t);          ///< the last two dimensions
  [[nodiscard]] Tensor narrow(const Tensor& t, std::int64_t dimension, std::int64_t first,
                              std::int64_t count);
  [[nodiscard]] Tensor select(const Tensor& t, std::int64_t dimension, std::int64_t index);
  /// x (B * T, H, D) -> (B, H, T, D).
  [[nodiscard]] Tensor by_head(const Tensor& x, std::int64_t sequences);
  /// `t` itself where it has the dtype already.
  [[nodiscard]] Tensor convert(Tensor t, Dtype dtype);

  // ---- products ----
  [[nodiscard]] Tensor product(const Tensor& a, const Tensor& b);
  [[nodiscard]] Tensor product_plus(const Tensor& bias, const Tensor& a, const Tensor& b);
  /// Of c's type, or a narrower one where adds_products() of both.
  void add_product_(const Tensor& c, const Tensor& a, const Tensor& b, double alpha);
  [[nodiscard]] bool adds_products(Dtype sum, Dtype factors) const {
    return step::adds_products(profile().cuda, sum, factors);
  }
  /// a (n, m, k) times b (n, k, p): (n, m, p).
  [[nodiscard]] Tensor batch_product(const Tensor& a, const Tensor& b);

  // ---- elementwise; the second operand broadcasts ----
  [[nodiscard]] Tensor add(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor subtract(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor multiply(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor maximum(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor minimum(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor plus(const Tensor& a, std::int64_t b);  ///< int64
  [[nodiscard]] Tensor negate(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor absolute(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor sign(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor exp(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor cosine(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor sine(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor sigmoid(const Tensor& a) { return unary(a); }
  /// On the host the kernel also writes a buffer of the result's size.
  [[nodiscard]] Tensor log_sigmoid(const Tensor& a);
  [[nodiscard]] Tensor clamp(const Tensor& a, double, double) { return unary(a); }
  /// On the host an operand of another dtype is converted first.
  void add_(const Tensor& a, const Tensor& b);
  void add_(const Tensor& a, double) { in_place(a); }
  void subtract_(const Tensor& a, const Tensor& b) { in_place(a, b); }
  void multiply_(const Tensor& a, const Tensor& b) { in_place(a, b); }
  void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b);
  void divide_(const Tensor& a, const Tensor& b) { in_place(a, b); }
  void divide_(const Tensor& a, double) { in_place(a); }
  void scale_(const Tensor& a, double) { in_place(a); }
  void add_scaled_(const Tensor& a, const Tensor& b, double) { in_place(a, b); }  ///< a += scale b
  /// a += scale b c.
  void add_multiply_(const Tensor& a, const Tensor& b, const Tensor& c, double);
  void sqrt_(const Tensor& a) { in_place(a); }
  void rsqrt_(const Tensor& a) { in_place(a); }
  void exp_(const Tensor& a) { in_place(a); }
  void log_(const Tensor& a) { in_place(a); }
  void zero_(const Tensor& a);
  void copy_(const Tensor& a, const Tensor& b);
  // Comparisons give 1 or 0 in the operands' dtype; a boolean of the same shape is made first.
  [[nodiscard]] Tensor above(const Tensor& a, const Tensor&) { return comparison(a); }
  [[nodiscard]] Tensor above(const Tensor& a, double) { return comparison(a); }
  [[nodiscard]] Tensor at_least(const Tensor& a, const Tensor&) { return comparison(a); }
  [[nodiscard]] Tensor at_most(const Tensor& a, double) { return comparison(a); }
  [[nodiscard]] Tensor equal(const Tensor& a, const Tensor&) { return comparison(a); }
  /// cap * tanh(a / cap).
  void softcap_(const Tensor& a, double) { in_place(a); }
  /// 1 - (a / cap)^2 of capped values: the derivative.
  [[nodiscard]] Tensor softcap_slope(const Tensor& a, double) { return unary(a); }
  [[nodiscard]] Tensor activate(const Tensor& a, spec::Activation) { return unary(a); }
  void activate_(const Tensor& a, spec::Activation) { in_place(a); }
  [[nodiscard]] Tensor activate_backward(const Tensor& dy, const Tensor& x, spec::Activation) {
    return elementwise(dy, x);
  }

  // ---- reductions ----
  [[nodiscard]] Tensor sum(const Tensor& a);       ///< all: ()
  [[nodiscard]] Tensor sum_last(const Tensor& a);  ///< (..., n) -> (...)
  [[nodiscard]] Tensor max_last(const Tensor& a);  ///< (R, n) -> (R, 1)
  [[nodiscard]] Tensor max_rows(const Tensor& a);  ///< (R, n) -> (n,)
  /// (n, ...) -> (...), added up in `dtype`. On the host a wider dtype first copies `a` to it; on
  /// CUDA blocks that share a column leave partial sums (cuda_scratch.h).
  [[nodiscard]] Tensor sum_rows(const Tensor& a, Dtype dtype);
  [[nodiscard]] Tensor argmax_last(const Tensor& a);  ///< (R, n) -> (R,) int64
  [[nodiscard]] Tensor softmax_last(const Tensor& a) { return unary(a); }
  [[nodiscard]] Sorted<Tensor> sort_descending(const Tensor& a);
  void cumulate_last_(const Tensor& a);
  /// Zeroes what stands behind a cumulative mass of top_p; the first stays.
  void drop_beyond_mass_(const Tensor& a, double top_p);
  void drop_below_(const Tensor& a, double share);  ///< a share of the row's largest: zero
  /// a (R, V), seen (R, U) int64, amounts (R, U): the penalties of SamplingOptions.
  void penalize_(const Tensor& a, const Tensor& seen, const Tensor& amounts, double repetition);
  /// First place of each row whose value exceeds target (R, 1): (R, 1) int64, within the row.
  [[nodiscard]] Tensor search_last(const Tensor& a, const Tensor& target);

  // ---- indices ----
  /// table (V, C) at indices (N,) -> (N, C).
  [[nodiscard]] Tensor take_rows(const Tensor& table, const Tensor& indices);
  /// The same of a table in host memory, on the host; its rows are copied to the device.
  [[nodiscard]] Tensor take_rows_from_host(const Tensor& table, const Tensor& indices);
  /// table (V, C) at indices (N,) += rows (N, C); rows are converted to the table's dtype first.
  /// The same bits for the same arguments on every device.
  void add_to_rows_(const Tensor& table, const Tensor& indices, const Tensor& rows);
  /// a (R, V) at indices (R,) -> (R,).
  [[nodiscard]] Tensor gather_last(const Tensor& a, const Tensor& indices);
  /// a (R, V) at indices (R,) += values (R,).
  void add_to_last_(const Tensor& a, const Tensor& indices, const Tensor& values);
  /// b * length + lengths[b] - 1: (B,) int64.
  [[nodiscard]] Tensor last_rows(const Tensor& lengths, std::int64_t length);

  // ---- kernels ----
  [[nodiscard]] NormResult<Tensor> norm(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                                        const Tensor& bias, double eps);
  /// dx; adds to d_weight and d_bias where they are defined.
  [[nodiscard]] Tensor norm_backward(spec::NormKind kind, const Tensor& dy, const Tensor& x,
                                     const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                                     const Tensor& d_weight, const Tensor& d_bias);
  /// Turns the first dimensions of x (N, H, D) by cos and sin (P, d / 2), N a multiple of P, in
  /// half-split form.
  [[nodiscard]] Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse);
  /// Causal attention within each sequence. With a cap or a window that hides keys it takes what
  /// attention.h does, else what its kernel does.
  [[nodiscard]] AttentionContext<Tensor> attention(Heads<Tensor> heads, const Spans<Tensor>& spans,
                                                   const ScoreOptions& options);
  /// The same by `kernel`, which takes packed sequences together or is given one.
  [[nodiscard]] AttentionContext<Tensor> attention_by(AttentionKernel kernel, Heads<Tensor> heads,
                                                      const Spans<Tensor>& spans,
                                                      const ScoreOptions& options);
  /// FlashAttention of q (n, H, D), k and v (m, K, D), range by range: `out`, zero for a row without keys, and
  /// `log_sum` (H, n), minus infinity for it, of which a boolean is taken. On a GPU, where it computes the options.
  [[nodiscard]] AttentionContext<Tensor> attention_of_ranges(const Heads<Tensor>& heads,
                                                             const PackedRanges<Tensor>& ranges,
                                                             const ScoreOptions& options);
  /// From d_out (n, H * D). What is saved may be of all keys of a row, `ranges` having some of them.
  [[nodiscard]] Heads<Tensor> attention_of_ranges_backward(AttentionContext<Tensor> saved,
                                                           const PackedRanges<Tensor>& ranges,
                                                           Tensor d_out);
  /// Where packed sequences start, for kernels: (B + 1,) int32 on a GPU, undefined elsewhere.
  [[nodiscard]] Tensor starts_of(const std::vector<std::int64_t>& lengths);
  /// spec::context_places() of sequences of these lengths that ranks divide: its rows and its tokens, int64.
  [[nodiscard]] std::pair<Tensor, Tensor> places_of(const std::vector<std::int64_t>& lengths,
                                                    std::int64_t ranks);
  /// From d_out (N, H * D).
  [[nodiscard]] Heads<Tensor> attention_backward(AttentionContext<Tensor> saved, Tensor d_out);
  /// (queries, keys) bool: query i, at position `offset` + i from the first key, attends to the key;
  /// window 0: all keys up to its position.
  [[nodiscard]] Tensor causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t offset,
                                   std::int64_t window);
  /// a (n, r, m) becomes minus infinity where mask, (r, m) or (n, 1, m), is false.
  void hide_(const Tensor& a, const Tensor& mask);
  /// positions (B,) -> (B, key_limit), added to scores: zero for the last `window` keys up to the
  /// position (0: for all), minus infinity elsewhere. Rows are as far apart as kernels want them.
  [[nodiscard]] Tensor decode_mask(const Tensor& positions, std::int64_t key_limit,
                                   std::int64_t window, Dtype dtype);
  /// What decode_attention of `heads` query heads needs to know of the keys up to positions (B,), of which none is
  /// `key_limit` or more, in a cache (B', K, T, D): made once a step for all blocks with these options.
  [[nodiscard]] DecodeKeys<Tensor> decode_keys(const Tensor& positions, const Tensor& cache,
                                               std::int64_t heads, std::int64_t key_limit,
                                               const ScoreOptions& options);
  /// q (B, H, D) against keys of the cache: (B, H * D). Masks have q's dtype.
  [[nodiscard]] Tensor decode_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                        const DecodeKeys<Tensor>& seen,
                                        const ScoreOptions& options);
  /// The last n tokens of a sequence, q (n, H, D), against its keys and values (1, K, T, D): (n, H * D).
  [[nodiscard]] Tensor chunk_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                       const ScoreOptions& options);
  /// rows (B' * length, K, D) to the first places of the cache's `slots`.
  void write_prompts_(const Tensor& cache, const Tensor& slots, const Tensor& rows,
                      std::int64_t length);
  /// rows (B, K, D) to positions (B,).
  void write_token_(const Tensor& cache, const Tensor& positions, const Tensor& rows);

  // ---- optimizer ----
  /// sqrt(sum a^2) in float32, of float64 in float64: ().
  [[nodiscard]] Tensor norm_of(const Tensor& a);
  [[nodiscard]] Tensor filled_like(const Tensor&, double) { return make({}, Dtype::kFloat32); }
  /// One step of torch.optim.AdamW on tensors (n,) of one dtype; count () is the step's number.
  void fused_adamw_(const Tensor& x, const Tensor& g, const Tensor& average, const Tensor& square,
                    const Tensor& count, double lr, const spec::OptimizerConfig&);
  /// One step of torch.optim.SGD; `momentum` undefined: without.
  void fused_sgd_(const Tensor& x, const Tensor& g, const Tensor& momentum, double lr,
                  const spec::OptimizerConfig&);
  /// Random numbers below 2^16 as int32: (n,). Number i is a function of the key and i. On CUDA a
  /// second buffer of the same size.
  [[nodiscard]] Tensor rounding_noise(std::uint64_t key, std::int64_t n);
  /// to (bfloat16) = value (float32), contiguous, rounded up or down so that the mean is exact.
  /// Element i is number first + i of its tensor; it draws from a function of `noise` (kNoise
  /// numbers, or as many as the tensor has elements), the key and that number. On CUDA a buffer of
  /// int32, of kNoise elements at most.
  void round_stochastically_(const Tensor& to, const Tensor& value, const Tensor& noise,
                             std::uint64_t key, std::int64_t first);

 private:
  void reduce_over(double bytes, spec::Axis axis);
  [[nodiscard]] Tensor make(const Shape& shape, Dtype dtype);
  [[nodiscard]] Tensor with_shape(const Tensor& t, const Shape& shape) const;
  [[nodiscard]] Tensor unary(const Tensor& a);
  [[nodiscard]] Tensor elementwise(const Tensor& a, const Tensor& b);
  [[nodiscard]] Tensor comparison(const Tensor& a);
  void in_place(const Tensor& a);
  void in_place(const Tensor& a, const Tensor& b);
  void touch(std::int64_t elements, Dtype dtype) { (void)make({elements}, dtype); }
  std::pair<Tensor, Tensor> flash_forward_scratch(const FlashSplits& splits, bool packed);
  void attention_backward_scratch(AttentionKernel kernel, const AttentionSizes& sizes, Dtype dtype);
  [[nodiscard]] Heads<Tensor> efficient_attention_backward(AttentionContext<Tensor> saved,
                                                           Tensor d_out,
                                                           const AttentionSizes& sizes);
  void sum_of_one_scratch(const Tensor& row);
  void reduction_scratch(const ReductionScratch& scratch);
  [[nodiscard]] Tensor rms_norm_backward_on_host(const Tensor& dy, const Tensor& x, bool trained);

  MemorySink& sink_;
  bool cudnn_;          ///< attention may take its kernels
  double shifted_ = 0;  // when every shift so far has come
};

}  // namespace neap::step
