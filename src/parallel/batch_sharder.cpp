#include "parallel/batch_sharder.h"

#include <ATen/ATen.h>

#include "bridge/runtime.h"

namespace neap::parallel {
namespace {

// Blocks of the batch by (turn, rank, place in the block).
std::vector<std::int64_t> by_turns(const at::Tensor& t, std::int64_t first, std::int64_t second,
                                   std::int64_t block) {
  std::vector<std::int64_t> shape = {first, second, block};
  shape.insert(shape.end(), t.sizes().begin() + 1, t.sizes().end());
  return shape;
}

}  // namespace

at::Tensor BatchSharder::gather(const at::Tensor& mine, std::int64_t block) const {
  if (!mine.defined() || size_ == 1) return mine;
  const bridge::HostScope host;
  const auto ranks = static_cast<std::int64_t>(size_);
  const at::Tensor flat = mine.contiguous();
  std::vector<std::int64_t> shape = flat.sizes().vec();
  shape[0] *= ranks;
  const at::Tensor by_rank = at::empty(shape, flat.options());
  communicator_->all_gather(by_rank, flat);
  const std::int64_t turns = flat.size(0) / block;
  return by_rank.view(by_turns(flat, ranks, turns, block)).transpose(0, 1).reshape(shape);
}

at::Tensor BatchSharder::pick(const at::Tensor& batch, std::int64_t block) const {
  if (!batch.defined() || size_ == 1) return batch;
  const bridge::HostScope host;
  const auto ranks = static_cast<std::int64_t>(size_);
  std::vector<std::int64_t> shape = batch.sizes().vec();
  shape[0] /= ranks;
  return batch.view(by_turns(batch, shape[0] / block, ranks, block))
      .select(1, static_cast<std::int64_t>(rank_))
      .reshape(shape)
      .contiguous();  // blocks of one row are a view with gaps
}

}  // namespace neap::parallel
