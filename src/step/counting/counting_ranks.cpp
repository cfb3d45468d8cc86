// Counting versions of operations on several ranks.
#include <algorithm>

#include "step/counting/counting_ops.h"

namespace neap::step {

// As a ring: a reduce-scatter, then an all-gather.
void CountingOps::reduce_over(double bytes_of_one, spec::Axis axis) {
  const std::int64_t n = ranks(axis);
  if (n > 1) add_peer_work(2 * gathered_bytes(n, bytes_of_one), axis, 2);
}

double CountingOps::total_over(double x, spec::Axis axis) {
  if (ranks(axis) == 1) return x;
  reduce_over(bytes(make({1}, Dtype::kFloat64)), axis);
  return x;
}

CountedTensor CountingOps::join_columns(CountedTensor a, spec::Axis axis) {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  const Shape joined{a.size(0), n * a.size(1)};
  const CountedTensor by_rank = make(joined, a.dtype());
  add_peer_work(static_cast<double>(n - 1) * bytes(a), axis);
  CountedTensor out = make(joined, a.dtype());
  add_traffic(2 * bytes(out));
  return out;
}

CountedTensor CountingOps::own_columns(const CountedTensor& a, spec::Axis axis) {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  CountedTensor out = make({a.size(0), a.size(1) / n}, a.dtype());
  add_traffic(2 * bytes(out));
  return out;
}

CountedTensor CountingOps::join_rows(const CountedTensor& a, spec::Axis axis) {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  Shape joined = a.shape();
  joined.set(0, n * a.size(0));
  CountedTensor out = make(joined, a.dtype());
  add_traffic(2 * bytes(a));
  add_peer_work(static_cast<double>(n - 1) * bytes(a), axis);
  return out;
}

CountingOps::Shift CountingOps::begin_shift(const CountedTensor& mine, const CountedTensor&,
                                            spec::Axis axis) {
  const double sent = bytes(mine), seconds = peer_seconds(sent, 1, axis);
  shifted_ = std::max(shifted_, now()) + seconds;
  const Shift shift{shifted_, sent};
  if (profile().cuda) return shift;
  finish_shift(shift, axis);
  return {};
}
void CountingOps::finish_shift(const Shift& shift, spec::Axis axis) {
  if (shift.sent > 0) wait_for_peers(shift.end, shift.sent, axis);
}

CountedTensor CountingOps::own_rows(const CountedTensor& a, spec::Axis axis) {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  Shape own = a.shape();
  own.set(0, spec::rows_of_each(a.size(0), n));
  CountedTensor out = make(own, a.dtype());
  add_traffic(2 * bytes(out));
  return out;
}

CountedTensor CountingOps::sum_to_rows(const CountedTensor& a, spec::Axis axis) {
  const std::int64_t n = ranks(axis);
  if (n > 1) add_peer_work(gathered_bytes(n, bytes(a)), axis);
  return own_rows(a, axis);
}

OwnIndices<CountedTensor> CountingOps::own_indices(const CountedTensor& indices, std::int64_t,
                                                   spec::Axis axis) {
  if (ranks(axis) == 1) return {indices, {}};
  OwnIndices<CountedTensor> own{make(indices.shape(), Dtype::kInt64),
                                make(indices.shape(), Dtype::kBool)};
  touch(indices.shape().elements(), Dtype::kBool);
  add_traffic(4 * bytes(indices));
  return own;
}

void CountingOps::clear_(const CountedTensor& a, const CountedTensor& foreign) {
  if (foreign.defined()) in_place(a);
}
CountedTensor CountingOps::cleared(const CountedTensor& a, const CountedTensor& foreign) {
  if (!foreign.defined()) return a;
  CountedTensor out = clone(a);
  clear_(out, foreign);
  return out;
}

}  // namespace neap::step
