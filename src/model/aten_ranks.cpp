// Operations of several ranks on libtorch.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "bridge/runtime.h"
#include "model/aten_ops.h"
#include "parallel/communicator.h"

namespace neap::model {

using at::Tensor;
using spec::Axis;

std::int64_t AtenOps::ranks(Axis axis) const {
  return axis == Axis::kTensor && tensor_ != nullptr ? tensor_->size() : 1;
}

void AtenOps::sum_over_(const Tensor& a, Axis axis) const {
  if (ranks(axis) > 1) tensor_->all_reduce(a, parallel::Reduce::kSum);
}
void AtenOps::max_over_(const Tensor& a, Axis axis) const {
  if (ranks(axis) > 1) tensor_->all_reduce(a, parallel::Reduce::kMax);
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
  tensor_->all_gather(by_rank, a);
  const Tensor out = at::empty({rows, n, columns}, a.options());
  out.copy_(by_rank.transpose(0, 1));
  return out.view({rows, n * columns});
}

Tensor AtenOps::own_columns(const Tensor& a, Axis axis) const {
  const std::int64_t n = ranks(axis);
  if (n == 1) return a;
  const std::int64_t columns = a.size(1) / n;
  return a.narrow(1, tensor_->rank() * columns, columns).clone(at::MemoryFormat::Contiguous);
}

step::OwnIndices<Tensor> AtenOps::own_indices(const Tensor& indices, std::int64_t count,
                                              Axis axis) const {
  if (ranks(axis) == 1) return {indices, {}};
  Tensor own = at::empty(indices.sizes(), indices.options());
  Tensor foreign = at::empty(indices.sizes(), indices.options().dtype(at::kBool));
  Tensor behind = at::empty(indices.sizes(), indices.options().dtype(at::kBool));
  const bridge::HostScope scratch;
  at::sub_out(own, indices, at::scalar_tensor(tensor_->rank() * count, at::kLong));
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

}  // namespace neap::model
