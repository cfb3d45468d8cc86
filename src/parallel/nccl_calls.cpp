#include "parallel/nccl_calls.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace neap::parallel {
namespace {

int type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return kNcclFloat32;
    case at::kDouble:
      return kNcclFloat64;
    case at::kBFloat16:
      return kNcclBfloat16;
    case at::kHalf:
      return kNcclFloat16;
    case at::kLong:
      return kNcclInt64;
    case at::kInt:
      return kNcclInt32;
    default:
      return kNcclUint8;
  }
}

int op_of(Reduce op) {
  return op == Reduce::kMax ? kNcclMax : kNcclSum;
}

std::size_t count(const at::Tensor& t) {
  return static_cast<std::size_t>(t.numel());
}

}  // namespace

int NcclCalls::all_reduce(const at::Tensor& t, Reduce op) const {
  return api_.all_reduce(t.const_data_ptr(), t.mutable_data_ptr(), count(t), type_of(t), op_of(op),
                         comm_, stream_);
}

int NcclCalls::reduce_scatter(const at::Tensor& t, const Counts& counts) const {
  if (alike(counts)) {
    const at::Tensor mine = t.narrow(0, rank_ * counts[0], counts[0]);
    return api_.reduce_scatter(t.const_data_ptr(), mine.mutable_data_ptr(), count(mine), type_of(t),
                               kNcclSum, comm_, stream_);
  }
  return grouped(t, counts, [&](const at::Tensor& part, int root) {
    return api_.reduce(part.const_data_ptr(), part.mutable_data_ptr(), count(part), type_of(t),
                       kNcclSum, root, comm_, stream_);
  });
}

int NcclCalls::all_gather(const at::Tensor& mine, const at::Tensor& whole,
                          const Counts& counts) const {
  if (alike(counts)) {
    return api_.all_gather(mine.const_data_ptr(), whole.mutable_data_ptr(), count(mine),
                           type_of(whole), comm_, stream_);
  }
  return grouped(whole, counts, [&](const at::Tensor& part, int root) {
    const at::Tensor& from = root == rank_ ? mine : part;
    return api_.broadcast(from.const_data_ptr(), part.mutable_data_ptr(), count(part),
                          type_of(whole), root, comm_, stream_);
  });
}

int NcclCalls::broadcast(const at::Tensor& t, int root) const {
  return api_.broadcast(t.const_data_ptr(), t.mutable_data_ptr(), count(t), type_of(t), root, comm_,
                        stream_);
}

int NcclCalls::send(const at::Tensor& t, int to) const {
  return api_.send(t.const_data_ptr(), count(t), type_of(t), to, comm_, stream_);
}

int NcclCalls::receive(const at::Tensor& t, int from) const {
  return api_.receive(t.mutable_data_ptr(), count(t), type_of(t), from, comm_, stream_);
}

bool NcclCalls::alike(const Counts& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](auto n) { return n == counts[0]; });
}

}  // namespace neap::parallel
