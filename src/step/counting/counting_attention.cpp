// Counting versions of attention and its masks.
#include <tuple>
#include <utility>

#include "step/attention/ring_attention.h"
#include "step/counting/counting_ops.h"

namespace neap::step {
namespace {

// Speed of an attention kernel: the fraction of a large matrix product's rate (775 TFLOP/s) that
// its FLOPs reach, and a start-up cost in FLOPs at that rate. Fitted for whole sequences of 2 048
// to 32 768 tokens with heads of 128 on an H200; the error is within 15 % for 28 and 40 heads
// (bench/results/attention-long-h200.jsonl). FlashAttention's deterministic backward gets slower
// with more blocks of keys at once; with 12 heads it takes two thirds of this time. The
// memory-efficient kernel's values are from attention-h200.jsonl.
struct Speed {
  double share = 0.5, start_flops = 0;
  [[nodiscard]] double share_with_start(double flops) const {
    return flops > 0 ? 1 / (1 / share + start_flops / flops) : share;
  }
};
Speed forward_speed(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kCudnn:
      return {0.82, 28e9};
    case AttentionKernel::kFlash:
      return {0.43, 76e9};
    case AttentionKernel::kEfficient:
      return {0.117, 0};
    case AttentionKernel::kHost:
    case AttentionKernel::kProducts:
      break;
  }
  return {};
}
Speed backward_speed(AttentionKernel kernel, bool deterministic) {
  switch (kernel) {
    case AttentionKernel::kCudnn:
      return {0.67, 97e9};
    case AttentionKernel::kFlash:
      return {deterministic ? 0.238 : 0.41, 170e9};
    case AttentionKernel::kEfficient:
      return {0.108, 0};
    case AttentionKernel::kHost:
    case AttentionKernel::kProducts:
      break;
  }
  return {};
}
// Fraction of the memory throughput (bench/results/kernel-times-h100.jsonl).
constexpr double kHalvesShare = 0.42;
// Pairs of a query and a key of one sequence; both orders are counted. With one length each
// sequence has `keys` keys, and the queries belong to the last of them.
double pairs_of(const Spans<CountedTensor>& spans, std::int64_t keys) {
  const auto square = [](std::int64_t n) {
    return static_cast<double>(n) * static_cast<double>(n);
  };
  if (!spans.packed())
    return static_cast<double>(spans.sequences) * static_cast<double>(spans.length) *
           static_cast<double>(2 * keys - spans.length);
  double sum = 0;
  for (const std::int64_t length : spans.lengths) sum += square(length);
  return sum;
}

}  // namespace

// ---- rotation and attention ----

CountedTensor CountingOps::rotate(const CountedTensor& x, const CountedTensor&,
                                  const CountedTensor&, bool) {
  if (own_kernels(x.dtype())) {
    add_traffic(2 * bytes(x));
    return make(x.shape(), x.dtype());
  }
  // Each half takes a product and a fused multiply-add, with elements that are not contiguous.
  for (int kernel = 0; kernel < 4; ++kernel) add_traffic(1.25 * bytes(x), kHalvesShare);
  return make(x.shape(), x.dtype());
}

AttentionContext<CountedTensor> CountingOps::attention(Heads<CountedTensor> heads,
                                                       const Spans<CountedTensor>& spans,
                                                       const ScoreOptions& options) {
  if (spans.divided()) {
    const AttentionKernel kernel =
        context_kernel(options, spans, profile().cuda, heads.q.dtype(), heads.q.size(2));
    return context_attention(*this, kernel, std::move(heads), spans, options);
  }
  const AttentionKernel kernel =
      attention_kernel(options, spans, profile().cuda, cudnn_, heads.q.dtype(), heads.q.size(2));
  if (takes_in_turn(kernel, spans))
    return attention_in_turn(*this, kernel, std::move(heads), spans, options);
  return attention_by(kernel, std::move(heads), spans, options);
}

CountedTensor CountingOps::starts_of(const std::vector<std::int64_t>& lengths) {
  if (!profile().cuda) return {};
  return make({std::ssize(lengths) + 1}, Dtype::kFloat32);  // int32 has the same size
}

std::pair<CountedTensor, CountedTensor> CountingOps::places_of(
    const std::vector<std::int64_t>& lengths, std::int64_t ranks) {
  std::int64_t tokens = 0, rows = 0;
  for (const std::int64_t length : lengths) {
    tokens += length;
    rows += ranks * spec::rows_of_each(length, ranks);
  }
  CountedTensor of_tokens = make({tokens}, Dtype::kInt64);
  return {std::move(of_tokens), make({rows}, Dtype::kInt64)};
}

AttentionContext<CountedTensor> CountingOps::attention_by(AttentionKernel kernel,
                                                          Heads<CountedTensor> heads,
                                                          const Spans<CountedTensor>& spans,
                                                          const ScoreOptions& options) {
  if (kernel == AttentionKernel::kProducts)
    return chunked_attention(*this, std::move(heads), spans.sequences, options);
  const std::int64_t n = heads.q.size(0);
  const std::int64_t h = heads.q.size(1);
  const std::int64_t d = heads.q.size(2);
  const Dtype dtype = heads.q.dtype();
  AttentionContext<CountedTensor> out;
  out.options = options;
  out.spans = spans;
  // Two causal products: half of all pairs each.
  // of keys; unused for packed sequences
  const std::int64_t length = heads.k.size(0) / spans.sequences;
  const double flops = 2.0 * static_cast<double>(h * d) * pairs_of(spans, length);
  add_kernel(flops, 2 * bytes(heads.q) + 2 * bytes(heads.k), dtype,
             forward_speed(kernel).share_with_start(flops));
  const bool grouped = heads.k.size(1) != h;
  out.heads = std::move(heads);
  out.kernel = kernel;
  if (out.kernel == AttentionKernel::kCudnn) {
    out.seed = make({}, Dtype::kInt64);
    out.offset = make({}, Dtype::kInt64);
  }
  CountedTensor keys, values;  // repeated for every query head
  const bool efficient = out.kernel == AttentionKernel::kEfficient;
  if (efficient && grouped) {
    keys = make({n, h, d}, dtype);
    values = make({n, h, d}, dtype);
  }
  out.out = make({n, h * d}, dtype);
  const std::int64_t rounded = spans.sequences * ((spans.length + 31) / 32 * 32);
  out.log_sum = make({h, efficient ? rounded : n}, wide(dtype));
  if (out.kernel == AttentionKernel::kFlash) {
    const AttentionSizes sizes{spans.sequences, spans.length, h, out.heads.k.size(1), d, 0, length};
    const FlashSplits splits =
        spans.packed() ? FlashSplits{} : flash_forward_splits(sizes, profile().device);
    std::tie(out.seed, out.offset) = flash_forward_scratch(splits, spans.packed());
  }
  if (out.kernel == AttentionKernel::kCudnn) touch(kCudnnWorkspace, Dtype::kBool);
  return out;
}

// Returns the state of the kernel's random numbers, which it allocates even without dropout. For
// packed sequences, the partial results over keys are freed in another order.
std::pair<CountedTensor, CountedTensor> CountingOps::flash_forward_scratch(
    const FlashSplits& splits, bool packed) {
  CountedTensor log_sums = make({splits.log_sums}, Dtype::kFloat32);
  CountedTensor outputs = make({splits.outputs}, Dtype::kFloat32);
  CountedTensor seed = make({2}, Dtype::kInt64);
  CountedTensor offset = make({}, Dtype::kInt64);
  if (packed) outputs = CountedTensor();
  log_sums = CountedTensor();
  return {std::move(seed), std::move(offset)};
}

Heads<CountedTensor> CountingOps::attention_backward(AttentionContext<CountedTensor> saved,
                                                     CountedTensor d_out) {
  if (saved.spans.divided())
    return context_attention_backward(*this, std::move(saved), std::move(d_out));
  if (!saved.parts.empty())
    return attention_in_turn_backward(*this, std::move(saved), std::move(d_out));
  if (saved.kernel == AttentionKernel::kProducts)
    return chunked_attention_backward(*this, std::move(saved), std::move(d_out));
  const std::int64_t n = saved.heads.q.size(0);
  const std::int64_t h = saved.heads.q.size(1);
  const std::int64_t d = saved.heads.q.size(2);
  const std::int64_t key_heads = saved.heads.k.size(1);
  const std::int64_t key_rows = saved.heads.k.size(0);
  // The number of keys; unused for packed sequences.
  const std::int64_t length = key_rows / saved.spans.sequences;
  const Dtype dtype = saved.heads.q.dtype();
  // Five products: the recomputed scores, and the gradients of values, weights, queries and keys.
  const double flops = 5.0 * static_cast<double>(h * d) * pairs_of(saved.spans, length);
  add_kernel(flops, 4 * bytes(saved.heads.q) + 4 * bytes(saved.heads.k), dtype,
             backward_speed(saved.kernel, profile().deterministic).share_with_start(flops));
  const bool packed = saved.spans.packed();
  AttentionSizes sizes{saved.spans.sequences, packed ? 0 : saved.spans.length, h, key_heads, d,
                       packed ? n : 0};
  if (!packed) sizes.keys = length;
  if (saved.kernel == AttentionKernel::kEfficient)
    return efficient_attention_backward(std::move(saved), std::move(d_out), sizes);
  Heads<CountedTensor> out;
  out.q = make({n, h, d}, dtype);
  out.k = make({key_rows, key_heads, d}, dtype);
  out.v = make({key_rows, key_heads, d}, dtype);
  attention_backward_scratch(saved.kernel, sizes, dtype);
  d_out = CountedTensor();
  saved = {};
  return out;
}

AttentionContext<CountedTensor> CountingOps::attention_of_ranges(
    const Heads<CountedTensor>& heads, const PackedRanges<CountedTensor>& ranges,
    const ScoreOptions&) {
  const std::int64_t n = heads.q.size(0);
  const std::int64_t h = heads.q.size(1);
  const std::int64_t d = heads.q.size(2);
  const Dtype dtype = heads.q.dtype();
  const double flops = 2.0 * static_cast<double>(h * d) * ranges.pairs;
  add_kernel(flops, 2 * bytes(heads.q) + 2 * bytes(heads.k), dtype,
             forward_speed(AttentionKernel::kFlash).share_with_start(flops));
  AttentionContext<CountedTensor> out;
  out.out = make({n, h * d}, dtype);
  out.log_sum = make({h, n}, Dtype::kFloat32);
  std::tie(out.seed, out.offset) = flash_forward_scratch({}, /*packed=*/true);
  touch(h * n, Dtype::kBool);
  return out;
}

Heads<CountedTensor> CountingOps::attention_of_ranges_backward(
    AttentionContext<CountedTensor> saved, const PackedRanges<CountedTensor>& ranges,
    CountedTensor d_out) {
  const std::int64_t n = saved.heads.q.size(0);
  const std::int64_t h = saved.heads.q.size(1);
  const std::int64_t d = saved.heads.q.size(2);
  const std::int64_t keys = saved.heads.k.size(0), key_heads = saved.heads.k.size(1);
  const Dtype dtype = saved.heads.q.dtype();
  const double flops = 5.0 * static_cast<double>(h * d) * ranges.pairs;
  add_kernel(
      flops, 4 * bytes(saved.heads.q) + 4 * bytes(saved.heads.k), dtype,
      backward_speed(AttentionKernel::kFlash, profile().deterministic).share_with_start(flops));
  Heads<CountedTensor> out;
  out.q = make({n, h, d}, dtype);
  out.k = make({keys, key_heads, d}, dtype);
  out.v = make({keys, key_heads, d}, dtype);
  AttentionSizes sizes{ranges.count, 0, h, key_heads, d, n};
  sizes.packed_keys = keys;
  attention_backward_scratch(AttentionKernel::kFlash, sizes, dtype);
  d_out = CountedTensor();
  saved = {};
  return out;
}

// Keys, values and their gradients are repeated for every query head.
Heads<CountedTensor> CountingOps::efficient_attention_backward(
    AttentionContext<CountedTensor> saved, CountedTensor d_out, const AttentionSizes& sizes) {
  const Dtype dtype = saved.heads.q.dtype();
  const std::int64_t n = sizes.sequences * sizes.length;
  const Shape every{n, sizes.heads, sizes.width};
  const bool grouped = sizes.key_heads != sizes.heads;
  Heads<CountedTensor> out;
  {
    const CountedTensor keys = grouped ? make(every, dtype) : CountedTensor();
    const CountedTensor values = grouped ? make(every, dtype) : CountedTensor();
    out = {make(every, dtype), make(every, dtype), make(every, dtype)};
    CountedTensor workspace, sums;
    {
      const CountedTensor product = make(every, Dtype::kFloat32);  // dO * O
      sums = make({n, sizes.heads}, Dtype::kFloat32);
      // The layout by head has the same size if there is one head or one row.
      if (sizes.heads > 1 && sizes.length > 1) sums = make({n, sizes.heads}, Dtype::kFloat32);
    }
    workspace = make({efficient_backward_workspace(sizes)}, Dtype::kBool);
  }
  d_out = CountedTensor();
  saved = {};
  if (grouped) {
    const Shape shape{n, sizes.key_heads, sizes.width};
    CountedTensor k = make(shape, dtype);
    CountedTensor v = make(shape, dtype);
    out.k = std::move(k);
    out.v = std::move(v);
  }
  return out;
}

void CountingOps::attention_backward_scratch(AttentionKernel kernel, const AttentionSizes& sizes,
                                             Dtype dtype) {
  switch (kernel) {
    case AttentionKernel::kHost:
    case AttentionKernel::kEfficient:
    case AttentionKernel::kProducts:
      return;
    case AttentionKernel::kCudnn:
      return touch(cudnn_backward_workspace(sizes, dtype), Dtype::kBool);
    case AttentionKernel::kFlash: {
      const FlashScratch scratch =
          flash_backward_scratch(sizes, profile().deterministic, profile().device);
      const CountedTensor sums = make({scratch.row_sums}, Dtype::kFloat32);
      const CountedTensor accumulator = make({scratch.accumulator}, Dtype::kFloat32);
      add_traffic(2 * bytes(accumulator));  // zeroed, and its parts are added
      const CountedTensor dk = make({scratch.key_heads}, dtype);
      const CountedTensor dv = make({scratch.key_heads}, dtype);
      return;
    }
  }
}

CountedTensor CountingOps::causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t,
                                       std::int64_t) {
  return make({queries, keys}, Dtype::kBool);
}
void CountingOps::hide_(const CountedTensor& a, const CountedTensor& mask) {
  const CountedTensor hidden = make(mask.shape(), Dtype::kBool);
  in_place(a);
}

CountedTensor CountingOps::chunk_attention(const CountedTensor& q, const CountedTensor& keys,
                                           const CountedTensor& values,
                                           const ScoreOptions& options) {
  const std::int64_t n = q.size(0);
  const std::int64_t h = q.size(1);
  const std::int64_t d = q.size(2);
  const std::int64_t length = keys.size(2);
  if (!chunk_by_flash(options, profile().cuda, q.dtype(), d, n, length))
    return attention_of_last(*this, q, keys, values, options);
  const double pairs =
      static_cast<double>(n) * (static_cast<double>(length) - 0.5 * static_cast<double>(n - 1));
  const double flops = 4.0 * static_cast<double>(h * d) * pairs;
  add_kernel(flops, 2 * bytes(q) + bytes(keys) + bytes(values), q.dtype(),
             forward_speed(AttentionKernel::kFlash).share_with_start(flops));
  CountedTensor out = make({n, h * d}, q.dtype());
  CountedTensor log_sum = make({h, n}, Dtype::kFloat32);
  AttentionSizes sizes{1, n, h, keys.size(1), d};
  sizes.keys = length;
  auto [seed, offset] =
      flash_forward_scratch(flash_forward_splits(sizes, profile().device), /*packed=*/false);
  log_sum = CountedTensor();
  seed = CountedTensor();
  return out;
}

}  // namespace neap::step
