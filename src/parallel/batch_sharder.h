// Which rows of a batch are a rank's: row i of the batch goes to rank i mod size.
//
// Dealt out like cards, so that rows [a, b) of the batch, a mini-batch, are rows [a / size,
// b / size) of every rank's share, whatever the mini-batches' size; and so that the batch does not
// depend on the number of ranks.
// A block is what must stay together: the `block` sequences that answer one prompt.
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

  /// Number in the batch of this rank's row `local`.
  [[nodiscard]] std::size_t global(std::size_t local) const { return local * size_ + rank_; }

  /// This rank's rows of a batch; ranks may differ by one.
  template <class T>
  [[nodiscard]] std::vector<T> of(const std::vector<T>& batch) const {
    std::vector<T> out;
    for (std::size_t i = rank_; i < batch.size(); i += size_) out.push_back(batch[i]);
    return out;
  }
  /// Of so many rows, those of the rank that has most.
  [[nodiscard]] std::size_t most_of(std::size_t rows) const { return (rows + size_ - 1) / size_; }
  /// As `of`, but as many on every rank: where the batch ends early, its last row comes again.
  template <class T>
  [[nodiscard]] std::vector<T> of_padded(const std::vector<T>& batch) const {
    std::vector<T> out;
    for (std::size_t i = 0; i < most_of(batch.size()); ++i)
      out.push_back(batch[std::min(global(i), batch.size() - 1)]);
    return out;
  }

  /// The batch (size * n, ...) of every rank's (n, ...), in host memory; n a multiple of `block`.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine, std::int64_t block) const;
  /// This rank's rows (n, ...) of the batch (size * n, ...), contiguous.
  [[nodiscard]] at::Tensor pick(const at::Tensor& batch, std::int64_t block) const;

 private:
  Communicator* communicator_;
  std::size_t rank_, size_;
};

}  // namespace neap::parallel
