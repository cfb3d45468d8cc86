// Counting version of decoding attention: one query per sequence.
#include <algorithm>
#include <tuple>

#include "step/attention/decoding.h"
#include "step/counting/counting_ops.h"
#include "step/counting/kernel_seconds.h"

namespace neap::step {
namespace {

// Fraction of the rate of matrix products; decoding is bound by the cache's bytes.
constexpr double kDecodeShare = 0.45;
// Fractions of the memory throughput that FlashAttention reaches on an H200
// (bench/results/decode-kernels-h200.jsonl). The first applies if a sequence's keys are divided
// among blocks. The second applies if each block reads its own keys, with enough blocks to fill the
// GPU.
constexpr double kDividedKeysRate = 0.9, kWholeKeysRate = 0.5;
constexpr std::int64_t kWholeKeysBlocks = 110;

// On Hopper, kernels that start before the previous one has ended save this share of an operation's
// fixed time.
constexpr double kEarlyShare = 0.5;
// attend.cu, few_rows.cu and some_rows.cu on an H200 (bench/results/row-products-h200.jsonl and
// decode-many-rows-h200.jsonl): fixed time in addition to an operation's, and fractions of the memory
// throughput. Heads that share keys read them from the GPU's cache.
constexpr double kAttendSeconds = 0.6e-6, kAttendRate = 0.8, kAttendCacheRate = 2;
// Blocks with several heads (decode-parts-h200.jsonl): the time of a wave of blocks, and bytes of heads that are computed in a
// second, as a multiple of the memory throughput.
constexpr double kSharedSeconds = 3e-6, kSharedRate = 2.7;
// Each page of a row's keys, whose address the kernel looks up first (decode-pages-h200.jsonl).
constexpr double kPageSeconds = 0.08e-6;
constexpr double kFewRowsSeconds = 0, kFewRowsRate = 0.92;
constexpr double kSomeRowsSeconds = 1.5e-6, kSomeRowsRate = 1.08;
// A thread of adapters.cu computes up to kTile rows in turn (an H200, two and eight rows;
// bench/results/step-speed-h200.jsonl).
constexpr double kAdapterRowSeconds = 0.5e-6;
// Blocks of some_rows.cu read all rows of x: for 64 rows, this time and share of the matrices' time.
constexpr double kManyRows = 64, kManyRowsSeconds = 1e-6, kManyRowsShare = 0.25;

double early_seconds(const KernelProfile& profile, double bytes, double share = 1) {
  const double saved = profile.own.warp_groups ? kEarlyShare * profile.rates.operation_seconds : 0;
  return traffic_seconds(profile.rates, bytes, share) - saved;
}
double product_of_rows(const KernelProfile& profile, RowProduct kind, double rows, double moved) {
  if (kind == RowProduct::kFewRows)
    return kFewRowsSeconds + early_seconds(profile, moved, kFewRowsRate);
  const double full = rows / kManyRows;
  return kSomeRowsSeconds + full * kManyRowsSeconds +
         early_seconds(profile, (1 + full * kManyRowsShare) * moved, kSomeRowsRate);
}

double flash_rate(std::int64_t sequences, std::int64_t heads, bool divided) {
  if (divided) return kDividedKeysRate;
  const auto blocks = static_cast<double>(std::min(sequences * heads, kWholeKeysBlocks));
  return kWholeKeysRate * blocks / static_cast<double>(kWholeKeysBlocks);
}

double elements_of(const FewMatrices<CountedTensor>& by) {
  double sum = 0;
  for (const CountedTensor& w : by.weight)
    if (w.defined()) sum += static_cast<double>(w.shape().elements());
  return sum;
}

}  // namespace

CountedTensor CountingOps::decode_mask(const CountedTensor& positions, std::int64_t key_limit,
                                       std::int64_t window, Dtype dtype) {
  const std::int64_t stride = decode_mask_stride(key_limit);
  const CountedTensor range = iota(stride);
  const Shape shape{positions.size(0), stride};
  const CountedTensor seen = make(shape, Dtype::kBool);
  if (window > 0) {
    const CountedTensor oldest = plus(positions, -window);
    const CountedTensor inside = make(shape, Dtype::kBool);
  }
  return narrow(make(shape, dtype), 1, 0, key_limit);
}

DecodeKeys<CountedTensor> CountingOps::decode_keys(const CountedTensor& positions,
                                                   const CountedTensor& cache, std::int64_t heads,
                                                   std::int64_t key_limit,
                                                   const ScoreOptions& options) {
  DecodeKeys<CountedTensor> out;
  out.limit = out.read = key_limit;
  if (!decodes_by_flash(options, profile().cuda, cache.dtype(), cache.size(3))) {
    out.mask = decode_mask(positions, key_limit, options.window, cache.dtype());
    return out;
  }
  const PackedCache packed = packed_cache(heads, cache.size(1), cache.size(2));
  const std::int64_t sequences = positions.size(0) * packed.of_sequence;
  out.counts = make({sequences + 1}, Dtype::kFloat32);  // int32 has the same size
  out.starts = make({sequences + 1}, Dtype::kFloat32);
  out.used = make({sequences}, Dtype::kFloat32);
  if (options.window > 0) touch(4 * sequences, Dtype::kBool);
  return out;
}

CountedTensor CountingOps::decode_attention(const CountedTensor& q, const CountedTensor& keys,
                                            const CountedTensor& values,
                                            const DecodeKeys<CountedTensor>& seen,
                                            const ScoreOptions& options) {
  const std::int64_t b = q.size(0);
  const std::int64_t h = q.size(1);
  const std::int64_t d = q.size(2);
  const std::int64_t k = keys.size(1);
  if (decodes_by_products(options, profile().cuda, q.dtype(), d))
    return decode_attention_by_products(*this, q, keys, values, seen.mask, options);
  const bool flash = decodes_by_flash(options, profile().cuda, q.dtype(), d);
  // Keys that a mask hides are still read.
  std::int64_t read = flash ? seen.read : seen.limit;
  if (flash && options.window > 0) read = std::min(read, options.window);
  const std::int64_t group = h / k;
  FlashSplits splits;
  double rate = 1;
  if (flash) {
    if (group > 1) {
      AttentionSizes sizes{b * k, group, 1, 1, d};
      sizes.keys = seen.limit;
      splits = flash_forward_splits(sizes, profile().device);
    }
    rate = flash_rate(b, k, splits.outputs > 0);
  }
  add_kernel(4.0 * static_cast<double>(b * h * d * read),
             2.0 * static_cast<double>(b * k * read * d * element_bytes(q.dtype())) / rate,
             q.dtype(), kDecodeShare);
  CountedTensor out = make({b, h * d}, q.dtype());
  if (flash) {
    CountedTensor log_sum = make({h * b}, Dtype::kFloat32);
    auto [seed, offset] = flash_forward_scratch(splits, /*packed=*/true);
    log_sum = CountedTensor();
    seed = CountedTensor();
  } else if (profile().cuda && group > 1 && group < h) {
    out = make({b, h * d}, q.dtype());  // heads in their original order
  }
  return out;
}

CountedTensor CountingOps::products(const CountedTensor& x, const CountedTensor& w) {
  CountedTensor out = make({w.size(0), x.size(0), w.size(1)}, x.dtype());
  add_product(2.0 * static_cast<double>(x.size(0)) * static_cast<double>(w.shape().elements()),
              bytes(x) + bytes(w) + bytes(out), 0, x.dtype());
  return out;
}
CountedTensor CountingOps::norm_and_add_(spec::NormKind, const CountedTensor& x,
                                         const CountedTensor&, const CountedTensor&, double,
                                         const CountedTensor& added) {
  const double moved = (added.defined() ? 3 : 2) * bytes(x);
  add_work(0, moved, early_seconds(profile(), moved));
  return make(x.shape(), x.dtype());
}
CountedTensor CountingOps::append_(const CountedTensor&, const CountedTensor&, const CountedTensor&,
                                   const Heads<CountedTensor>& heads,
                                   const Rotation<CountedTensor>&) {
  add_traffic(2 * (bytes(heads.q) + bytes(heads.k) + bytes(heads.v)));
  return make(heads.q.shape(), heads.q.dtype());
}

CountedTensor CountingOps::append_and_attend_(const CountedTensor& keys, const CountedTensor&,
                                              const CountedTensor&,
                                              const Heads<CountedTensor>& heads,
                                              const Rotation<CountedTensor>&, const KeyLimit& limit,
                                              const ScoreOptions& options) {
  return attend_cached(keys, heads, limit, options, 0);
}
CountedTensor CountingOps::append_and_attend_pages_(
    const PagedKeys<CountedTensor>& cache, const CountedTensor&, const Heads<CountedTensor>& heads,
    const Rotation<CountedTensor>&, const KeyLimit& limit, const ScoreOptions& options) {
  return attend_cached(cache.keys, heads, limit, options, kPageSeconds);
}
CountedTensor CountingOps::attend_cached(const CountedTensor& keys,
                                         const Heads<CountedTensor>& heads, const KeyLimit& limit,
                                         const ScoreOptions& options, double page_seconds) {
  const std::int64_t b = heads.q.size(0), h = heads.q.size(1), d = heads.q.size(2);
  std::int64_t read = limit.keys;
  if (options.window > 0) read = std::min(read, options.window);
  const std::int64_t all = b * h;
  const std::int64_t shares = attend_shares(all, limit.rounded);
  CountedTensor out = make({b, h * d}, heads.q.dtype());
  const CountedTensor parts =
      shares > 1 ? make({all, shares, d + 2}, Dtype::kFloat32) : CountedTensor();
  const double of_heads =
      2.0 * static_cast<double>(all * read * d * element_bytes(heads.q.dtype()));
  const double of_memory = of_heads * static_cast<double>(keys.size(1)) / static_cast<double>(h);
  const std::int64_t of_block = attend_heads(b, h, keys.size(1));
  const auto rounds =
      static_cast<double>(div_up(div_up(all, of_block), 2 * profile().own.multiprocessors));
  const double fixed = of_block > 1 ? rounds * kSharedSeconds : kAttendSeconds;
  const double cache_rate = of_block > 1 ? kSharedRate : kAttendCacheRate;
  const double paging =
      page_seconds * static_cast<double>(div_up(read, kernels::decoding::kPageTokens));
  add_work(4.0 * static_cast<double>(all * read * d), of_memory,
           fixed + paging +
               early_seconds(profile(), std::max(of_memory / kAttendRate, of_heads / cache_rate)));
  if (shares > 1) add_work(0, bytes(parts), early_seconds(profile(), bytes(parts)));
  return out;
}

void CountingOps::add_few_rows(const CountedTensor& x, double elements, double out_bytes) {
  const double moved =
      bytes(x) + elements * static_cast<double>(element_bytes(x.dtype())) + out_bytes;
  const auto out = static_cast<std::int64_t>(elements) / x.size(1);
  const RowProduct kind = profile().own.row_product(x.dtype(), x.size(0), x.size(1), out);
  const auto rows = static_cast<double>(x.size(0));
  add_work(2 * rows * elements, moved, product_of_rows(profile(), kind, rows, moved));
}
CountedTensor CountingOps::few_rows_products(const CountedTensor& x,
                                             const FewMatrices<CountedTensor>& by) {
  std::int64_t columns = 0;
  for (const CountedTensor& w : by.weight) columns += w.defined() ? w.size(0) : 0;
  CountedTensor out = make({x.size(0), columns}, x.dtype());
  add_few_rows(x, elements_of(by), bytes(out));
  return out;
}
CountedTensor CountingOps::few_rows_activated(const CountedTensor& x,
                                              const FewMatrices<CountedTensor>& by,
                                              spec::Activation) {
  return few_rows_products(x, by);
}
void CountingOps::add_few_rows_(const CountedTensor& sum, const CountedTensor& x,
                                const CountedTensor& w, const CountedTensor&) {
  add_few_rows(x, elements_of({{w}, {}}), 2 * bytes(sum));
}
CountedTensor CountingOps::few_rows_gated(const CountedTensor& x,
                                          const FewMatrices<CountedTensor>& by, spec::Activation) {
  CountedTensor out = make({x.size(0), by.weight[0].size(0)}, x.dtype());
  add_few_rows(x, elements_of(by), bytes(out));
  return out;
}

void CountingOps::add_adapters(const CountedTensor& y, const RowAdapters<CountedTensor>& by,
                               double out_bytes) {
  double elements = 0;
  for (const CountedTensor& up : by.up)
    if (up.defined()) elements += static_cast<double>(up.shape().elements());
  const double moved =
      bytes(y) + elements * static_cast<double>(element_bytes(y.dtype())) + out_bytes;
  const auto in_turn =
      static_cast<double>(std::min<std::int64_t>(y.size(0), kernels::decoding::kTile));
  add_work(2 * static_cast<double>(y.size(0)) * elements, moved,
           in_turn * kAdapterRowSeconds + early_seconds(profile(), moved, kFewRowsRate));
}
void CountingOps::add_row_adapters_(const CountedTensor& y, const RowAdapters<CountedTensor>& by) {
  add_adapters(y, by, bytes(y));
}
void CountingOps::add_adapted_rows_(const CountedTensor& sum, const CountedTensor& y,
                                    const RowAdapters<CountedTensor>& by) {
  add_adapters(y, by, 2 * bytes(sum));
}
CountedTensor CountingOps::gate_adapted_rows(const CountedTensor& y,
                                             const RowAdapters<CountedTensor>& by,
                                             spec::Activation) {
  CountedTensor out = make({y.size(0), by.out[0]}, y.dtype());
  add_adapters(y, by, bytes(out));
  return out;
}

void CountingOps::write_prompts_(const CountedTensor&, const CountedTensor&,
                                 const CountedTensor& rows, std::int64_t) {
  add_traffic(2 * bytes(rows));
}
void CountingOps::write_token_(const CountedTensor&, const CountedTensor&,
                               const CountedTensor& rows) {
  add_traffic(2 * bytes(rows));
}

}  // namespace neap::step
