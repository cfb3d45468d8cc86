#include "step/counting_ops.h"

#include <algorithm>
#include <memory>

#include "step/attention.h"

namespace neap::step {
namespace {

// Attention kernels reach about half of the rate of a large matrix product.
constexpr double kAttentionShare = 0.5;

double bytes(const CountedTensor& t) {
  return t.defined() ? static_cast<double>(t.bytes()) : 0;
}

}  // namespace

void CountedTensor::free_storage() {
  storage_->sink->release(storage_->address);
  delete storage_;
  storage_ = nullptr;
}

void CountingOps::add_work(double flops, double bytes_moved, Dtype dtype, double share) {
  work_.flops += weight_ * flops;
  work_.bytes_moved += weight_ * bytes_moved;
  const KernelRates& rates = profile_.rates;
  if (rates.bytes <= 0) return;
  const double rate = element_bytes(dtype) == 2 ? rates.half_flops : rates.single_flops;
  work_.seconds += weight_ * std::max({rates.operation_seconds, bytes_moved / rates.bytes,
                                       flops > 0 ? flops / (share * rate) : 0});
}

// ---- making ----

CountedTensor CountingOps::make(const Shape& shape, Dtype dtype) {
  CountedTensor t = CountedTensor::outside(shape, dtype);
  // An empty tensor takes no memory.
  if (const std::int64_t size = t.bytes(); size > 0)
    t.storage_ = new CountedTensor::Storage{&sink_, sink_.allocate(size), 1};
  return t;
}

CountedTensor CountingOps::iota(std::int64_t n, std::int64_t) {
  return make({n}, Dtype::kInt64);
}
CountedTensor CountingOps::from_host(const std::vector<float>& values) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  return make(shape, Dtype::kFloat32);
}
CountedTensor CountingOps::to_device(const CountedTensor& t) {
  return profile_.cuda ? make(t.shape(), t.dtype()) : t;
}
CountedTensor CountingOps::to_host(const CountedTensor& t) {
  return CountedTensor::outside(t.shape(), t.dtype());
}

// ---- views ----

CountedTensor CountingOps::with_shape(const CountedTensor& t, const Shape& shape) const {
  CountedTensor out = t;
  out.shape_ = shape;
  return out;
}
CountedTensor CountingOps::view(const CountedTensor& t, Shape shape) {
  std::int64_t known = 1;
  std::int64_t open = -1;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (shape[at] < 0) {
      open = at;
    } else {
      known *= shape[at];
    }
  }
  if (open >= 0) shape.set(open, t.shape().elements() / known);
  return with_shape(t, shape);
}
CountedTensor CountingOps::transpose(const CountedTensor& t) {
  Shape shape = t.shape();
  shape.set(-2, t.size(-1));
  shape.set(-1, t.size(-2));
  return with_shape(t, shape);
}
CountedTensor CountingOps::narrow(const CountedTensor& t, std::int64_t dimension, std::int64_t,
                                  std::int64_t count) {
  Shape shape = t.shape();
  shape.set(dimension, count);
  return with_shape(t, shape);
}
CountedTensor CountingOps::select(const CountedTensor& t, std::int64_t dimension, std::int64_t) {
  const Shape& s = t.shape();
  switch (s.rank()) {
    case 1:
      return with_shape(t, {});
    case 2:
      return with_shape(t, {s[1 - dimension]});
    case 3:
      return with_shape(t, {s[dimension == 0 ? 1 : 0], s[dimension == 2 ? 1 : 2]});
    default:
      return with_shape(
          t, {s[dimension == 0 ? 1 : 0], s[dimension <= 1 ? 2 : 1], s[dimension == 3 ? 2 : 3]});
  }
}
CountedTensor CountingOps::by_head(const CountedTensor& x, std::int64_t sequences) {
  return with_shape(x, {sequences, x.size(1), x.size(0) / sequences, x.size(2)});
}
CountedTensor CountingOps::convert(CountedTensor t, Dtype dtype) {
  if (t.dtype() == dtype) return t;
  CountedTensor out = make(t.shape(), dtype);
  add_work(0, bytes(t) + bytes(out));
  return out;
}

// ---- products ----

CountedTensor CountingOps::product(const CountedTensor& a, const CountedTensor& b) {
  CountedTensor out = make({a.size(0), b.size(1)}, a.dtype());
  add_work(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(1)),
           bytes(a) + bytes(b) + bytes(out), a.dtype());
  return out;
}
CountedTensor CountingOps::product_plus(const CountedTensor&, const CountedTensor& a,
                                        const CountedTensor& b) {
  return product(a, b);
}
void CountingOps::add_product_(const CountedTensor& c, const CountedTensor& a,
                               const CountedTensor& b, double) {
  add_work(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(1)),
           bytes(a) + bytes(b) + 2 * bytes(c), a.dtype());
}

CountedTensor CountingOps::batch_product(const CountedTensor& a, const CountedTensor& b) {
  CountedTensor out = make({a.size(0), a.size(1), b.size(2)}, a.dtype());
  add_work(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(2)),
           bytes(a) + bytes(b) + bytes(out), a.dtype());
  return out;
}

// ---- elementwise ----

CountedTensor CountingOps::unary(const CountedTensor& a) {
  add_work(0, 2 * bytes(a));
  return make(a.shape(), a.dtype());
}
CountedTensor CountingOps::elementwise(const CountedTensor& a, const CountedTensor& b) {
  Shape shape = a.shape();
  // The operand with more dimensions or larger ones decides.
  if (b.shape().elements() > shape.elements()) shape = b.shape();
  if (a.shape().rank() == b.shape().rank()) {
    for (std::size_t i = 0; i < shape.rank(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      shape.set(at, std::max(a.shape()[at], b.shape()[at]));
    }
  } else if (a.shape().rank() == 2 && b.shape().rank() == 1) {
    shape = {a.size(0), std::max(a.size(1), b.size(0))};
  }
  CountedTensor out = make(shape, a.dtype());
  add_work(0, bytes(a) + bytes(b) + bytes(out));
  return out;
}
CountedTensor CountingOps::plus(const CountedTensor& a, std::int64_t) {
  return unary(a);
}
CountedTensor CountingOps::log_sigmoid(const CountedTensor& a) {
  add_work(0, 2 * bytes(a));
  CountedTensor out = make(a.shape(), a.dtype());
  if (!profile_.cuda) touch(a.shape().elements(), a.dtype());
  return out;
}
CountedTensor CountingOps::comparison(const CountedTensor& a) {
  add_work(0, 3 * bytes(a));
  const CountedTensor boolean = make(a.shape(), Dtype::kBool);
  return make(a.shape(), a.dtype());
}
void CountingOps::add_(const CountedTensor& a, const CountedTensor& b) {
  in_place(a, b);
  if (!profile_.cuda && a.dtype() != b.dtype()) touch(b.shape().elements(), a.dtype());
}
void CountingOps::in_place(const CountedTensor& a) {
  add_work(0, 2 * bytes(a));
}
void CountingOps::in_place(const CountedTensor& a, const CountedTensor& b) {
  add_work(0, 2 * bytes(a) + bytes(b));
}
void CountingOps::multiply_into(const CountedTensor& out, const CountedTensor& a,
                                const CountedTensor& b) {
  add_work(0, bytes(out) + bytes(a) + bytes(b));
}
void CountingOps::add_multiply_(const CountedTensor& a, const CountedTensor& b,
                                const CountedTensor& c, double) {
  add_work(0, 2 * bytes(a) + bytes(b) + bytes(c));
}
void CountingOps::zero_(const CountedTensor& a) {
  add_work(0, bytes(a));
}
void CountingOps::copy_(const CountedTensor& a, const CountedTensor& b) {
  add_work(0, bytes(a) + bytes(b));
}

// ---- reductions ----

CountedTensor CountingOps::sum(const CountedTensor& a) {
  add_work(0, bytes(a));
  return make({}, a.dtype());
}
CountedTensor CountingOps::sum_last(const CountedTensor& a) {
  add_work(0, bytes(a));
  Shape shape;
  switch (a.shape().rank()) {
    case 1:
      break;
    case 2:
      shape = {a.size(0)};
      break;
    default:
      shape = {a.size(0), a.size(1)};
  }
  return make(shape, a.dtype());
}
CountedTensor CountingOps::max_last(const CountedTensor& a) {
  add_work(0, bytes(a));
  return make({a.size(0), 1}, a.dtype());
}
CountedTensor CountingOps::max_rows(const CountedTensor& a) {
  add_work(0, bytes(a));
  return make({a.size(1)}, a.dtype());
}
CountedTensor CountingOps::sum_rows(const CountedTensor& a, Dtype dtype) {
  add_work(0, bytes(a));
  Shape shape = a.shape().rank() == 3 ? Shape{a.size(1), a.size(2)} : Shape{a.size(1)};
  CountedTensor out = make(shape, dtype);
  if (profile_.cuda) {
    const ReductionScratch scratch =
        column_sum_scratch(a.size(0), shape.elements(), a.dtype(), profile_.device);
    const CountedTensor partial = make({scratch.partial_bytes}, Dtype::kBool);
    const CountedTensor semaphores = make({scratch.semaphore_bytes}, Dtype::kBool);
  } else if (dtype != a.dtype()) {
    touch(a.shape().elements(), dtype);
  }
  return out;
}
CountedTensor CountingOps::argmax_last(const CountedTensor& a) {
  add_work(0, bytes(a));
  return make({a.size(0)}, Dtype::kInt64);
}
Sorted<CountedTensor> CountingOps::sort_descending(const CountedTensor& a) {
  add_work(0, 4 * bytes(a));
  Sorted<CountedTensor> out;
  out.values = make(a.shape(), a.dtype());
  out.order = make(a.shape(), Dtype::kInt64);
  return out;
}
void CountingOps::cumulate_last_(const CountedTensor& a) {
  in_place(a);
}
void CountingOps::drop_beyond_mass_(const CountedTensor& a, double) {
  add_work(0, 6 * bytes(a));
  const CountedTensor before = make(a.shape(), a.dtype());
  const CountedTensor drop = make(a.shape(), Dtype::kBool);
}
CountedTensor CountingOps::search_last(const CountedTensor& a, const CountedTensor& target) {
  add_work(0, bytes(target));
  return make({a.size(0), 1}, Dtype::kInt64);
}

// ---- indices ----

CountedTensor CountingOps::take_rows(const CountedTensor& table, const CountedTensor& indices) {
  CountedTensor out = table.shape().rank() == 2
                          ? make({indices.size(0), table.size(1)}, table.dtype())
                          : make({indices.size(0)}, table.dtype());
  add_work(0, 2 * bytes(out));
  return out;
}
void CountingOps::add_to_rows_(const CountedTensor& table, const CountedTensor&,
                               const CountedTensor& rows) {
  const CountedTensor converted = convert(rows, table.dtype());
  add_work(0, 3 * bytes(converted));
}
CountedTensor CountingOps::gather_last(const CountedTensor& a, const CountedTensor& indices) {
  return make({indices.size(0)}, a.dtype());
}
void CountingOps::add_to_last_(const CountedTensor&, const CountedTensor&,
                               const CountedTensor& values) {
  add_work(0, 2 * bytes(values));
}
CountedTensor CountingOps::last_rows(const CountedTensor& lengths, std::int64_t) {
  return make({lengths.size(0)}, Dtype::kInt64);
}

// ---- norms ----

NormResult<CountedTensor> CountingOps::norm(spec::NormKind kind, const CountedTensor& x,
                                            const CountedTensor&, const CountedTensor&, double) {
  const Shape column{x.size(0), 1};
  const Dtype inner = wide(x.dtype());
  NormResult<CountedTensor> out;
  add_work(0, 2 * bytes(x));
  if (kind == spec::NormKind::kLayerNorm) {
    out.y = make(x.shape(), x.dtype());
    // Statistics of the CPU kernel have the parameters' dtype.
    out.mean = make(column, profile_.cuda ? inner : x.dtype());
    out.rstd = make(column, profile_.cuda ? inner : x.dtype());
    return out;
  }
  if (profile_.cuda) {
    out.y = make(x.shape(), x.dtype());
    out.rstd = make(column, inner);
    return out;
  }
  out.rstd = make(column, inner);
  out.y = convert(make(x.shape(), inner), x.dtype());
  return out;
}

CountedTensor CountingOps::rms_norm_backward_on_host(const CountedTensor& dy,
                                                     const CountedTensor& x, bool trained) {
  const Dtype inner = wide(x.dtype());
  const CountedTensor wide_dy = convert(dy, inner);
  const CountedTensor x_hat = make(x.shape(), inner);
  if (trained) {
    const CountedTensor product = make(x.shape(), inner);
    const CountedTensor sum = make({x.size(1)}, inner);
  }
  CountedTensor dx = make(x.shape(), inner);
  {
    const CountedTensor product = make(x.shape(), inner);
    const CountedTensor mean = make({x.size(0), 1}, inner);
  }
  return convert(std::move(dx), x.dtype());
}

CountedTensor CountingOps::norm_backward(spec::NormKind kind, const CountedTensor& dy,
                                         const CountedTensor& x, const CountedTensor&,
                                         const CountedTensor&, const CountedTensor& weight,
                                         const CountedTensor& d_weight,
                                         const CountedTensor& d_bias) {
  add_work(0, (d_weight.defined() ? 5 : 3) * bytes(x));
  if (kind != spec::NormKind::kLayerNorm && !profile_.cuda)
    return rms_norm_backward_on_host(dy, x, d_weight.defined());
  CountedTensor dx = make(x.shape(), x.dtype());
  if (!d_weight.defined()) return dx;
  const CountedTensor gamma = make(weight.shape(), weight.dtype());
  const CountedTensor beta =
      d_bias.defined() ? make(weight.shape(), weight.dtype()) : CountedTensor();
  // Partial sums of the CPU kernel, one pair of rows a thread.
  if (!profile_.cuda) touch(2 * profile_.threads * x.size(1), x.dtype());
  return dx;
}

// ---- rotation and attention ----

CountedTensor CountingOps::rotate(const CountedTensor& x, const CountedTensor&,
                                  const CountedTensor&, bool) {
  // A product and a fused multiply-add for each half.
  add_work(0, 5 * bytes(x));
  return make(x.shape(), x.dtype());
}

AttentionContext<CountedTensor> CountingOps::attention(Heads<CountedTensor> heads,
                                                       std::int64_t sequences, std::int64_t length,
                                                       const ScoreOptions& options) {
  if (!is_plain(options, length))
    return chunked_attention(*this, std::move(heads), sequences, options);
  const std::int64_t n = heads.q.size(0);
  const std::int64_t h = heads.q.size(1);
  const std::int64_t d = heads.q.size(2);
  const Dtype dtype = heads.q.dtype();
  AttentionContext<CountedTensor> out;
  out.options = options;
  out.sequences = sequences;
  out.length = length;
  // Two products, causal: half of all pairs.
  add_work(2.0 * static_cast<double>(n * h * d * length), 2 * bytes(heads.q) + 2 * bytes(heads.k),
           dtype, kAttentionShare);
  const bool grouped = heads.k.size(1) != h;
  out.heads = std::move(heads);
  out.kernel = fused_kernel(profile_.cuda, !profile_.deterministic, dtype, d);
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
  out.log_sum = make({sequences, h, efficient ? (length + 31) / 32 * 32 : length}, wide(dtype));
  if (out.kernel == AttentionKernel::kFlash) {
    out.seed = make({2}, Dtype::kInt64);
    out.offset = make({}, Dtype::kInt64);
  }
  return out;
}

Heads<CountedTensor> CountingOps::attention_backward(AttentionContext<CountedTensor> saved,
                                                     CountedTensor d_out) {
  if (!is_plain(saved.options, saved.length))
    return chunked_attention_backward(*this, std::move(saved), std::move(d_out));
  const std::int64_t n = saved.heads.q.size(0);
  const std::int64_t h = saved.heads.q.size(1);
  const std::int64_t d = saved.heads.q.size(2);
  const std::int64_t key_heads = saved.heads.k.size(1);
  const Dtype dtype = saved.heads.q.dtype();
  // Five products: the scores again, and the gradients of values, weights, queries and keys.
  add_work(5.0 * static_cast<double>(n * h * d * saved.length),
           4 * bytes(saved.heads.q) + 4 * bytes(saved.heads.k), dtype, kAttentionShare);
  Heads<CountedTensor> out;
  out.q = make({n, h, d}, dtype);
  out.k = make({n, key_heads, d}, dtype);
  out.v = make({n, key_heads, d}, dtype);
  attention_backward_scratch(saved.kernel, {saved.sequences, saved.length, h, key_heads, d}, dtype);
  d_out = CountedTensor();
  saved = {};
  return out;
}

void CountingOps::attention_backward_scratch(AttentionKernel kernel, const AttentionSizes& sizes,
                                             Dtype dtype) {
  switch (kernel) {
    case AttentionKernel::kHost:
      return;
    case AttentionKernel::kCudnn:
      return touch(cudnn_backward_workspace(sizes, dtype), Dtype::kBool);
    case AttentionKernel::kFlash: {
      const FlashScratch scratch =
          flash_backward_scratch(sizes, profile_.deterministic, profile_.device);
      const CountedTensor sums = make({scratch.row_sums}, Dtype::kFloat32);
      const CountedTensor accumulator = make({scratch.accumulator}, Dtype::kFloat32);
      const CountedTensor dk = make({scratch.key_heads}, dtype);
      const CountedTensor dv = make({scratch.key_heads}, dtype);
      return;
    }
    case AttentionKernel::kEfficient: {
      // Keys and values, and their gradients, for every query head; row sums of dO * O.
      const std::int64_t rows = sizes.sequences * sizes.length * sizes.heads;
      const std::int64_t repeated = sizes.key_heads == sizes.heads ? 0 : rows * sizes.width;
      const CountedTensor keys = make({2 * repeated}, dtype);
      const CountedTensor gradients = make({2 * repeated}, dtype);
      const CountedTensor sums = make({rows}, Dtype::kFloat32);
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

CountedTensor CountingOps::decode_mask(const CountedTensor& positions, std::int64_t key_limit,
                                       std::int64_t window) {
  const CountedTensor range = iota(key_limit);
  const Shape shape{positions.size(0), key_limit};
  CountedTensor out = make(shape, Dtype::kBool);
  if (window > 0) {
    const CountedTensor oldest = plus(positions, -window);
    const CountedTensor inside = make(shape, Dtype::kBool);
  }
  return out;
}

CountedTensor CountingOps::decode_attention(const CountedTensor& q, const CountedTensor& keys,
                                            const CountedTensor& values, const CountedTensor& mask,
                                            const ScoreOptions& options) {
  if (options.softcap > 0) return capped_decode_attention(*this, q, keys, values, mask, options);
  const std::int64_t b = q.size(0);
  const std::int64_t h = q.size(1);
  const std::int64_t d = q.size(2);
  const std::int64_t limit = mask.size(1);
  const std::int64_t group = h / keys.size(1);
  add_work(4.0 * static_cast<double>(b * h * d * limit),
           2.0 * static_cast<double>(b * keys.size(1) * limit * d * element_bytes(q.dtype())),
           q.dtype(), kAttentionShare);
  if (!profile_.cuda) return make({b, h * d}, q.dtype());
  CountedTensor out;
  {
    // The boolean mask becomes one of numbers.
    const CountedTensor numbers = make({b, group, limit}, q.dtype());
    touch(b * group * limit, Dtype::kBool);
    out = make({b, h * d}, q.dtype());
    const CountedTensor log_sum = make({b, h}, wide(q.dtype()));
  }
  if (group > 1) out = make({b, h * d}, q.dtype());  // heads back in their order
  return out;
}

void CountingOps::write_prompts_(const CountedTensor&, const CountedTensor&,
                                 const CountedTensor& rows, std::int64_t) {
  add_work(0, 2 * bytes(rows));
}
void CountingOps::write_token_(const CountedTensor&, const CountedTensor&,
                               const CountedTensor& rows) {
  add_work(0, 2 * bytes(rows));
}

CountedTensor CountingOps::norm_of(const CountedTensor& a) {
  add_work(0, bytes(a));
  return make({}, Dtype::kFloat32);
}
void CountingOps::fused_adamw_(const CountedTensor& x, const CountedTensor& g,
                               const CountedTensor& average, const CountedTensor& square,
                               const CountedTensor&, double, const spec::OptimizerConfig&) {
  add_work(0, 2 * (bytes(x) + bytes(average) + bytes(square)) + bytes(g));
}
void CountingOps::fused_sgd_(const CountedTensor& x, const CountedTensor& g,
                             const CountedTensor& momentum, double, const spec::OptimizerConfig&) {
  add_work(0, 2 * (bytes(x) + bytes(momentum)) + bytes(g));
}
CountedTensor CountingOps::rounding_noise(std::uint64_t, std::int64_t n) {
  CountedTensor out = make({n}, Dtype::kFloat32);  // as wide as int32
  if (profile_.cuda) touch(n, Dtype::kFloat32);
  add_work(0, bytes(out));
  return out;
}
void CountingOps::round_stochastically_(const CountedTensor& to, const CountedTensor& value,
                                        const CountedTensor&, std::uint64_t, std::int64_t first) {
  add_work(0, bytes(to) + bytes(value));
  if (!profile_.cuda) return;
  const std::int64_t end = first + to.shape().elements();
  for (std::int64_t at = first; at < end;) {
    const std::int64_t next = std::min(end, (at / kNoise + 1) * kNoise);
    touch(next - at, Dtype::kFloat32);
    at = next;
  }
}

}  // namespace neap::step
