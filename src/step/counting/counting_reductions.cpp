// Counting versions of sums, maxima, sorting and sampling.
#include "step/counting/counting_ops.h"

namespace neap::step {
namespace {

// Fraction of the memory throughput: one block reads a row of logits, and its partial sums are
// added at the end (an H100; bench/results/kernel-times-h100.jsonl).
constexpr double kReductionShare = 0.75;

}  // namespace

void CountingOps::reduction_scratch(const ReductionScratch& scratch) {
  const CountedTensor partial = make({scratch.partial_bytes}, Dtype::kBool);
  const CountedTensor semaphores = make({scratch.semaphore_bytes}, Dtype::kBool);
}
CountedTensor CountingOps::sum(const CountedTensor& a) {
  add_traffic(bytes(a), kReductionShare);
  CountedTensor out = make({}, a.dtype());
  if (profile().cuda) reduction_scratch(row_sum_scratch(1, a.shape().elements(), profile().device));
  return out;
}
CountedTensor CountingOps::sum_last(const CountedTensor& a) {
  add_traffic(bytes(a), kReductionShare);
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
  add_traffic(bytes(a), kReductionShare);
  return make({a.size(0), 1}, a.dtype());
}
CountedTensor CountingOps::max_rows(const CountedTensor& a) {
  add_traffic(bytes(a), kReductionShare);
  CountedTensor out = make({a.size(1)}, a.dtype());
  if (profile().cuda)
    reduction_scratch(column_sum_scratch(a.size(0), a.size(1), a.dtype(), profile().device));
  return out;
}
CountedTensor CountingOps::sum_rows(const CountedTensor& a, Dtype dtype) {
  add_traffic(bytes(a), kReductionShare);
  Shape shape = a.shape().rank() == 3 ? Shape{a.size(1), a.size(2)} : Shape{a.size(1)};
  CountedTensor out = make(shape, dtype);
  if (profile().cuda)
    reduction_scratch(column_sum_scratch(a.size(0), shape.elements(), a.dtype(), profile().device));
  else if (dtype != a.dtype())
    touch(a.shape().elements(), dtype);
  return out;
}
CountedTensor CountingOps::argmax_last(const CountedTensor& a) {
  add_traffic(bytes(a), kReductionShare);
  return make({a.size(0)}, Dtype::kInt64);
}
Sorted<CountedTensor> CountingOps::sort_descending(const CountedTensor& a) {
  add_traffic(4 * bytes(a));
  Sorted<CountedTensor> out;
  out.values = make(a.shape(), a.dtype());
  out.order = make(a.shape(), Dtype::kInt64);
  if (!profile().cuda) return out;
  const RowSortScratch scratch = row_sort_scratch(a.size(0), a.size(1));
  const CountedTensor places = make({scratch.places}, Dtype::kBool);
  const CountedTensor pairs = make({scratch.pairs}, Dtype::kBool);
  {
    const CountedTensor keys = make({scratch.keys}, Dtype::kBool);
    touch(scratch.temporary, Dtype::kBool);
  }
  touch(scratch.second, Dtype::kBool);
  return out;
}
void CountingOps::cumulate_last_(const CountedTensor& a) {
  if (profile().cuda && a.size(0) == 1) sum_of_one_scratch(a);
  in_place(a);
}
// One row is copied and summed as two.
void CountingOps::sum_of_one_scratch(const CountedTensor& row) {
  const Shape two{2, row.size(1)};
  const CountedTensor rows = make(two, row.dtype());
  const CountedTensor sums = make(two, row.dtype());
}
void CountingOps::drop_beyond_mass_(const CountedTensor& a, double) {
  add_traffic(6 * bytes(a));
  const CountedTensor before = make(a.shape(), a.dtype());
  const CountedTensor drop = make(a.shape(), Dtype::kBool);
  if (profile().cuda && a.size(0) == 1) sum_of_one_scratch(a);
}
void CountingOps::drop_below_(const CountedTensor& a, double) {
  add_traffic(3 * bytes(a));
  const CountedTensor limit = max_last(a);
  const CountedTensor drop = make(a.shape(), Dtype::kBool);
}
void CountingOps::penalize_(const CountedTensor& a, const CountedTensor& seen, const CountedTensor&,
                            double repetition) {
  const CountedTensor x = make(seen.shape(), a.dtype());
  add_traffic(8 * bytes(x));
  if (repetition == 1) return;
  const CountedTensor positive = make(seen.shape(), Dtype::kBool);
  const CountedTensor factors = make(seen.shape(), a.dtype());
}
void CountingOps::logit_values_into(const CountedTensor&, const CountedTensor&,
                                    const CountedTensor&, const CountedTensor&,
                                    const CountedTensor& logits, const CountedTensor&,
                                    const LogitShape&) {
  add_traffic(bytes(logits), kReductionShare);
}
void CountingOps::logit_gradient_(const CountedTensor& logits, const CountedTensor&,
                                  const CountedTensor&, const CountedTensor&, const CountedTensor&,
                                  const CountedTensor&, const LogitShape&) {
  add_traffic(2 * bytes(logits));
}
void CountingOps::draw_into(const CountedTensor&, const CountedTensor&,
                            const CountedTensor& scratch, const CountedTensor& logits,
                            const CountedTensor&, const TokenDraw& by) {
  add_traffic(bytes(logits), kReductionShare);
  if (by.in_order()) add_traffic(bytes(logits) + bytes(scratch), kReductionShare);
  add_traffic(bytes(scratch), kReductionShare);
}
CountedTensor CountingOps::search_last(const CountedTensor& a, const CountedTensor& target) {
  add_traffic(bytes(target));
  return make({a.size(0), 1}, Dtype::kInt64);
}

}  // namespace neap::step
