// Operations on libtorch that involve several ranks.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <vector>

#include "bridge/runtime.h"
#include "ops/aten_ops.h"
#include "parallel/communicator.h"

namespace neap::ops {

using at::Tensor;
using spec::Axis;

std::int64_t AtenOps::ranks(Axis axis) const {
  const parallel::Communicator* const ranks = peers_.along(axis);
  return ranks != nullptr ? ranks->size() : 1;
}

void AtenOps::sum_over_(const Tensor& a, Axis axis) const {
  if (ranks(axis) > 1) along(axis).all_reduce(a, parallel::Reduce::kSum);
}
void AtenOps::max_over_(const Tensor& a, Axis axis) const {
  if (ranks(axis) > 1) along(axis).all_reduce(a, parallel::Reduce::kMax);
}

double AtenOps::total_over(double x, Axis axis) const {
  if (ranks(axis) == 1) return x;
  const Tensor total = at::empty({1}, at::dtype(at::kDouble).device(device_));
  {
    const bridge::HostScope scratch;
    total.fill_(x);
  }
  sum_over_(total, axis);
  return total.item<double>();
}

Tensor AtenOps::join_columns(Tensor a, Axis axis) const {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  const std::int64_t rows = a.size(0);
  const std::int64_t columns = a.size(1);
  const Tensor by_rank = at::empty({n, rows, columns}, a.options());
  along(axis).all_gather(by_rank, a);
  const Tensor out = at::empty({rows, n, columns}, a.options());
  out.copy_(by_rank.transpose(0, 1));
  return out.view({rows, n * columns});
}

Tensor AtenOps::own_columns(const Tensor& a, Axis axis) const {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  const std::int64_t columns = a.size(1) / n;
  return a.narrow(1, along(axis).rank() * columns, columns).clone(at::MemoryFormat::Contiguous);
}

namespace {

// The last ranks may have fewer rows, or none.
std::int64_t rows_without_padding(std::int64_t all, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t each = spec::rows_of_each(all, ranks);
  return std::clamp<std::int64_t>(all - rank * each, 0, each);
}
std::vector<std::int64_t> with_rows(const Tensor& a, std::int64_t rows) {
  std::vector<std::int64_t> sizes = a.sizes().vec();
  sizes[0] = rows;
  return sizes;
}

}  // namespace

Tensor AtenOps::join_rows(const Tensor& a, Axis axis) const {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  Tensor out = at::empty(with_rows(a, n * a.size(0)), a.options());
  along(axis).all_gather(out, a);
  return out;
}

AtenOps::Shift AtenOps::begin_shift(const Tensor& mine, const Tensor& theirs, Axis axis) const {
  return along(axis).begin_shift(mine, theirs);
}
void AtenOps::finish_shift(Shift shift, Axis axis) const {
  along(axis).wait_for(shift);
}
void AtenOps::end_shifts(Axis axis) const {
  along(axis).join();
}

Tensor AtenOps::own_rows(const Tensor& a, Axis axis) const {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  const std::int64_t each = spec::rows_of_each(a.size(0), n);
  const std::int64_t count = rows_without_padding(a.size(0), n, along(axis).rank());
  Tensor out = at::empty(with_rows(a, each), a.options());
  if (count > 0) out.narrow(0, 0, count).copy_(a.narrow(0, along(axis).rank() * each, count));
  if (count < each) out.narrow(0, count, each - count).zero_();
  return out;
}

Tensor AtenOps::sum_to_rows(const Tensor& a, Axis axis) const {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  const std::int64_t width = a.numel() / std::max<std::int64_t>(1, a.size(0));
  std::vector<std::int64_t> counts;
  for (std::int64_t rank = 0; rank < n; ++rank)
    counts.push_back(width * rows_without_padding(a.size(0), n, rank));
  along(axis).reduce_scatter(a.view({-1}), counts);
  return own_rows(a, axis);
}

step::OwnIndices<Tensor> AtenOps::own_indices(const Tensor& indices, std::int64_t count,
                                              Axis axis) const {
  if (ranks(axis) == 1) return {indices, {}};
  Tensor own = at::empty(indices.sizes(), indices.options());
  Tensor foreign = at::empty(indices.sizes(), indices.options().dtype(at::kBool));
  Tensor behind = at::empty(indices.sizes(), indices.options().dtype(at::kBool));
  const bridge::HostScope scratch;
  at::sub_out(own, indices, at::scalar_tensor(along(axis).rank() * count, at::kLong));
  at::lt_out(foreign, own, 0);
  at::ge_out(behind, own, count);
  foreign.logical_or_(behind);
  own.clamp_(0, count - 1);
  return {own, foreign};
}

void AtenOps::clear_(const Tensor& a, const Tensor& foreign) const {
  if (!foreign.defined()) return;
  const bridge::HostScope scratch;
  a.masked_fill_(a.dim() == 1 ? foreign : foreign.unsqueeze(-1), 0);
}
Tensor AtenOps::cleared(const Tensor& a, const Tensor& foreign) const {
  if (!foreign.defined()) return a;
  Tensor out = clone(a);
  clear_(out, foreign);
  return out;
}

}  // namespace neap::ops
