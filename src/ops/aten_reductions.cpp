// Sums, maxima, sorting and sampling on libtorch.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "bridge/runtime.h"
#include "ops/aten_ops.h"

namespace neap::ops {

using at::Tensor;
using step::Dtype;

namespace {

// Whether rows are a single row on a GPU. libtorch's CUDA kernel for sums of one row is not
// deterministic; the one for several rows is.
bool one_row_on_gpu(const Tensor& rows) {
  return rows.is_cuda() && rows.size(0) == 1;
}
Tensor running_sum_of_one(const Tensor& row) {
  return row.expand({2, row.size(-1)}).cumsum(-1).narrow(0, 0, 1);
}

}  // namespace

Tensor AtenOps::sum(const Tensor& a) const {
  return a.sum();
}
Tensor AtenOps::sum_last(const Tensor& a) const {
  return a.sum(-1);
}
Tensor AtenOps::max_last(const Tensor& a) const {
  return a.amax(-1, /*keepdim=*/true);
}
Tensor AtenOps::max_rows(const Tensor& a) const {
  return a.amax(0);
}
Tensor AtenOps::sum_rows(const Tensor& a, Dtype dtype) const {
  return a.sum(0, /*keepdim=*/false, to_aten(dtype));
}
Tensor AtenOps::argmax_last(const Tensor& a) const {
  return a.argmax(-1);
}
Tensor AtenOps::softmax_last(const Tensor& a) const {
  return at::softmax(a, -1);
}
step::Sorted<Tensor> AtenOps::sort_descending(const Tensor& a) const {
  Tensor values = at::empty(a.sizes(), a.options());
  Tensor order = at::empty(a.sizes(), a.options().dtype(at::kLong));
  const bridge::HostScope scratch;
  at::sort_out(values, order, a, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  return {values, order};
}
void AtenOps::cumulate_last_(const Tensor& a) const {
  const bridge::HostScope scratch;
  if (one_row_on_gpu(a)) {
    a.copy_(running_sum_of_one(a));
  } else {
    a.cumsum_(-1);
  }
}
void AtenOps::drop_beyond_mass_(const Tensor& a, double top_p) const {
  Tensor before = at::empty(a.sizes(), a.options());
  Tensor drop = at::empty(a.sizes(), a.options().dtype(at::kBool));
  const bridge::HostScope scratch;
  if (one_row_on_gpu(a)) {
    before.copy_(running_sum_of_one(a)).sub_(a);
  } else {
    at::cumsum_out(before, a, -1).sub_(a);
  }
  at::ge_out(drop, before, top_p);
  drop.select(-1, 0).fill_(false);
  a.masked_fill_(drop, 0);
}
void AtenOps::drop_below_(const Tensor& a, double share) const {
  const Tensor limit = max_last(a);
  Tensor drop = at::empty(a.sizes(), a.options().dtype(at::kBool));
  const bridge::HostScope scratch;
  limit.mul_(share);
  at::lt_out(drop, a, limit);
  a.masked_fill_(drop, 0);
}
void AtenOps::penalize_(const Tensor& a, const Tensor& seen, const Tensor& amounts,
                        double repetition) const {
  Tensor x = at::empty(seen.sizes(), a.options());
  Tensor positive, factors;
  if (repetition != 1) {
    positive = at::empty(seen.sizes(), a.options().dtype(at::kBool));
    factors = at::empty(seen.sizes(), a.options());
  }
  const bridge::HostScope scratch;
  at::gather_out(x, a, -1, seen);
  if (repetition != 1) {
    at::gt_out(positive, x, 0);
    x.mul_(factors.fill_(repetition).masked_fill_(positive, 1 / repetition));
  }
  x.sub_(amounts);
  a.scatter_(-1, seen, x);  // repeated indices get the same value each time
}
Tensor AtenOps::search_last(const Tensor& a, const Tensor& target) const {
  Tensor rank = at::empty(target.sizes(), target.options().dtype(at::kLong));
  const bridge::HostScope scratch;
  at::searchsorted_out(rank, a, target, /*out_int32=*/false, /*right=*/true);
  return rank.clamp_max_(a.size(-1) - 1);
}

}  // namespace neap::ops
