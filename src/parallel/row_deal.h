// Assigns the rows of a batch to ranks for scoring and training (balanced assignment). Every rank
// gets the same number of rows of each mini-batch, and about the same number of tokens.
//
// Rows of a mini-batch are assigned from longest to shortest. Each goes to the rank with the fewest
// tokens that still has a free place. Later mini-batches give their larger shares to ranks with
// fewer tokens so far. A rank keeps its rows in the batch's order, and rows of a mini-batch are
// contiguous. This also holds for mini-batches that are multiples of the smallest one.
//
// Threads   values and stateless functions; gather() and send() as their communicator.
// Failure   as the communicator.
// Cost      n log n for n rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallel/communicator.h"

namespace neap::parallel {

/// The rows of each rank; all ranks have the same number. The number of `lengths` is a multiple of
/// `mini_batch`, which is a multiple of `ranks`.
using RowLists = std::vector<std::vector<std::int64_t>>;
[[nodiscard]] RowLists balanced_rows(const std::vector<std::int64_t>& lengths,
                                     std::int64_t mini_batch, std::int64_t ranks);
/// Round robin: block i of `block` rows goes to rank i mod `ranks` (parallel/batch_sharder.h).
[[nodiscard]] RowLists rows_in_turns(std::int64_t rows, std::int64_t block, std::int64_t ranks);
/// The tokens of each rank.
[[nodiscard]] std::vector<std::int64_t> tokens_of(const RowLists& lists,
                                                  const std::vector<std::int64_t>& lengths);

class RowDeal {
 public:
  RowDeal(Communicator& ranks, RowLists lists);

  /// This rank's rows (n, ...) of the batch (ranks * n, ...). An undefined tensor stays undefined.
  [[nodiscard]] at::Tensor pick(const at::Tensor& batch) const;
  /// Gathers the batch in host memory from every rank's rows. An undefined tensor stays undefined.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine) const;
  /// As above, for rows (n, T) that hold `fill` after their first `counts` elements; only those
  /// elements are sent. `counts` has an entry for each row of the batch.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine, const std::vector<std::int64_t>& counts,
                                  std::int64_t fill) const;
  /// Sends each row to the rank that `to` assigns it to, and returns the rows that this rank
  /// receives. `to` has the same ranks. It may omit rows.
  [[nodiscard]] at::Tensor send(const at::Tensor& mine, const RowDeal& to,
                                const std::vector<std::int64_t>& counts, std::int64_t fill) const;

  /// This rank's rows.
  [[nodiscard]] const std::vector<std::int64_t>& own() const {
    return lists_[static_cast<std::size_t>(ranks_.rank())];
  }

 private:
  Communicator& ranks_;
  RowLists lists_;
  at::Tensor mine_, all_;  // int64: this rank's rows; the rows of all ranks in the order of ranks
};

}  // namespace neap::parallel
