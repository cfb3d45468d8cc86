// BatchSharder assigns the rows of a batch to ranks: row i goes to rank i mod size (round robin).
//
// Rows [a, b) of the batch are rows [a / size, b / size) of every rank's share. So each mini-batch
// is spread over all ranks, whatever its size, and the batch does not depend on the number of
// ranks. The `block` sequences that answer one prompt form a block. A block is never split.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/communicator.h"

namespace neap::parallel {

class BatchSharder {
 public:
  explicit BatchSharder(Communicator& communicator)
      : communicator_(&communicator),
        rank_(static_cast<std::size_t>(communicator.rank())),
        size_(static_cast<std::size_t>(communicator.size())) {}

  /// The number in the batch of this rank's row `local`.
  [[nodiscard]] std::size_t global(std::size_t local) const { return local * size_ + rank_; }

  /// This rank's rows of a batch. Shares of ranks differ by at most one row.
  template <class T>
  [[nodiscard]] std::vector<T> of(const std::vector<T>& batch) const {
    std::vector<T> out;
    for (std::size_t i = rank_; i < batch.size(); i += size_) out.push_back(batch[i]);
    return out;
  }
  /// The rows of the rank with the largest share, for a batch of `rows`.
  [[nodiscard]] std::size_t most_of(std::size_t rows) const { return (rows + size_ - 1) / size_; }
  /// The same number of rows for every rank: repeats the last row if the batch ends early.
  template <class T>
  [[nodiscard]] std::vector<T> of_padded(const std::vector<T>& batch) const {
    std::vector<T> out;
    for (std::size_t i = 0; i < most_of(batch.size()); ++i)
      out.push_back(batch[std::min(global(i), batch.size() - 1)]);
    return out;
  }

  /// Gathers the batch (size * n, ...) in host memory from every rank's (n, ...). n is a multiple
  /// of `block`.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine, std::int64_t block) const;
  /// This rank's rows (n, ...) of the batch (size * n, ...), contiguous.
  [[nodiscard]] at::Tensor pick(const at::Tensor& batch, std::int64_t block) const;

 private:
  Communicator* communicator_;
  std::size_t rank_, size_;
};

}  // namespace neap::parallel
