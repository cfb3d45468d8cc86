#include "step/counting/counting_ops.h"

#include <utility>

namespace neap::step {
namespace {

// Fractions of the memory throughput of slower kernels (an H100;
// bench/results/kernel-times-h100.jsonl): gradients of a norm's input, and gradients of its weights.
constexpr double kNormShare = 0.86;
constexpr double kNormSumsShare = 0.5;

}  // namespace

// ---- products ----

CountedTensor CountingOps::product(const CountedTensor& a, const CountedTensor& b) {
  CountedTensor out = make({a.size(0), b.size(1)}, a.dtype());
  add_product(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(1)),
              bytes(a) + bytes(b) + bytes(out), 0, a.dtype());
  return out;
}
CountedTensor CountingOps::product_plus(const CountedTensor&, const CountedTensor& a,
                                        const CountedTensor& b) {
  return product(a, b);
}
void CountingOps::add_product_(const CountedTensor& c, const CountedTensor& a,
                               const CountedTensor& b, double) {
  add_product(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(1)),
              bytes(a) + bytes(b), bytes(c), a.dtype());
}

CountedTensor CountingOps::batch_product(const CountedTensor& a, const CountedTensor& b) {
  CountedTensor out = make({a.size(0), a.size(1), b.size(2)}, a.dtype());
  add_product(2.0 * static_cast<double>(a.shape().elements()) * static_cast<double>(b.size(2)),
              bytes(a) + bytes(b) + bytes(out), 0, a.dtype());
  return out;
}

// ---- indices ----

CountedTensor CountingOps::take_rows(const CountedTensor& table, const CountedTensor& indices) {
  CountedTensor out = table.shape().rank() == 2
                          ? make({indices.size(0), table.size(1)}, table.dtype())
                          : make({indices.size(0)}, table.dtype());
  add_traffic(2 * bytes(out));
  return out;
}
CountedTensor CountingOps::take_rows_from_host(const CountedTensor& table,
                                               const CountedTensor& indices) {
  CountedTensor out = take_rows(table, indices);
  copy_at_once(Direction::kToDevice, bytes(out));
  return out;
}
void CountingOps::add_to_rows_(const CountedTensor& table, const CountedTensor&,
                               const CountedTensor& rows) {
  if (profile().own.add_rows(table.dtype(), rows.dtype(), rows.size(1)))
    return add_traffic(bytes(rows) * (1 + 2.0 * static_cast<double>(element_bytes(table.dtype())) /
                                              static_cast<double>(element_bytes(rows.dtype()))));
  const CountedTensor converted = convert(rows, table.dtype());
  add_traffic(3 * bytes(converted));
  if (!profile().cuda) return;
  // Rows with the same index are added one after another, so indices are sorted with their
  // positions.
  const Shape column{rows.size(0)};
  CountedTensor linear;
  {
    const CountedTensor wrapped = make(column, Dtype::kInt64);
    linear = make(column, Dtype::kInt64);
  }
  const CountedTensor sorted = make(column, Dtype::kInt64);
  const CountedTensor places = make(column, Dtype::kInt64);
  const CountedTensor range = make(column, Dtype::kInt64);
  touch(pair_sort_scratch(rows.size(0), table.size(0)), Dtype::kBool);
}
void CountingOps::put_rows_(const CountedTensor&, const CountedTensor&, const CountedTensor& rows) {
  add_traffic(2 * bytes(rows));
}
void CountingOps::put_heads_(const CountedTensor&, const CountedTensor&,
                             const CountedTensor& heads) {
  add_traffic(2 * bytes(heads));
}
CountedTensor CountingOps::page_places(const CountedTensor& table, const CountedTensor&,
                                       std::int64_t key_heads) {
  return make({table.size(0), key_heads}, Dtype::kInt64);
}
CountedTensor CountingOps::page_parts(const CountedTensor& table, std::int64_t key_heads) {
  return make({table.size(0) * key_heads * table.size(1)}, Dtype::kInt64);
}
CountedTensor CountingOps::gather_last(const CountedTensor& a, const CountedTensor& indices) {
  return make({indices.size(0)}, a.dtype());
}
void CountingOps::add_to_last_(const CountedTensor&, const CountedTensor&,
                               const CountedTensor& values) {
  add_traffic(2 * bytes(values));
}
CountedTensor CountingOps::last_rows(const CountedTensor& lengths, std::int64_t) {
  return make({lengths.size(0)}, Dtype::kInt64);
}

// ---- norms ----

NormResult<CountedTensor> CountingOps::norm(spec::NormKind kind, const CountedTensor& x,
                                            const CountedTensor& weight, const CountedTensor&,
                                            double) {
  const Shape column{x.size(0), 1};
  const Dtype inner = wide(x.dtype());
  NormResult<CountedTensor> out;
  add_traffic(2 * bytes(x));
  if (kind == spec::NormKind::kLayerNorm) {
    out.y = make(x.shape(), x.dtype());
    // Statistics of the CPU kernel have the parameters' type.
    out.mean = make(column, profile().cuda ? inner : x.dtype());
    out.rstd = make(column, profile().cuda ? inner : x.dtype());
    return out;
  }
  if (profile().cuda) {
    const CountedTensor gain =
        kind == spec::NormKind::kRmsOffset ? make(weight.shape(), weight.dtype()) : CountedTensor();
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
  add_traffic(3 * bytes(x), kNormShare);
  if (d_weight.defined()) add_traffic(2 * bytes(x), kNormSumsShare);
  if (kind != spec::NormKind::kLayerNorm && !profile().cuda)
    return rms_norm_backward_on_host(dy, x, d_weight.defined());
  CountedTensor gain =
      kind == spec::NormKind::kRmsOffset ? make(weight.shape(), weight.dtype()) : CountedTensor();
  CountedTensor dx = make(x.shape(), x.dtype());
  if (!d_weight.defined()) return dx;
  const CountedTensor gamma = make(weight.shape(), weight.dtype());
  const CountedTensor beta =
      d_bias.defined() ? make(weight.shape(), weight.dtype()) : CountedTensor();
  gain = CountedTensor();
  // The CPU kernel's partial sums: one pair of rows per thread.
  if (!profile().cuda) touch(2 * profile().threads * x.size(1), x.dtype());
  return dx;
}

CountedTensor CountingOps::own_rms_norm_backward(spec::NormKind, const CountedTensor&,
                                                 const CountedTensor& x, const CountedTensor&,
                                                 const CountedTensor&,
                                                 const CountedTensor& d_weight,
                                                 const CountedTensor& added) {
  add_traffic((added.defined() ? 4 : 3) * bytes(x), kNormShare);
  CountedTensor dx = make(x.shape(), x.dtype());
  if (!d_weight.defined()) return dx;
  const CountedTensor sums = make({norm_blocks(x.size(0)), x.size(1)}, Dtype::kFloat32);
  add_traffic(bytes(sums));
  return dx;
}

}  // namespace neap::step
