#include "parallel/batch_sharder.h"

#include "parallel/row_deal.h"

namespace neap::parallel {

at::Tensor BatchSharder::gather(const at::Tensor& mine, std::int64_t block) const {
  if (!mine.defined() || size_ == 1) return mine;
  const auto ranks = static_cast<std::int64_t>(size_);
  return RowDeal(*communicator_, rows_in_turns(ranks * mine.size(0), block, ranks)).gather(mine);
}

at::Tensor BatchSharder::pick(const at::Tensor& batch, std::int64_t block) const {
  if (!batch.defined() || size_ == 1) return batch;
  const auto ranks = static_cast<std::int64_t>(size_);
  return RowDeal(*communicator_, rows_in_turns(batch.size(0), block, ranks)).pick(batch);
}

}  // namespace neap::parallel
