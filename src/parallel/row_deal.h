// Which of a batch's rows a rank scores and trains: as many for each, those of each mini-batch, dealt so that ranks have
// about as many tokens.
//
// Rows of a mini-batch go from the longest to the shortest to the rank that has the fewest tokens of those that still
// have a place. The larger shares of a mini-batch go to ranks that have fewer rows of those before. A rank's rows are in
// the batch's order, and those of a mini-batch together, whatever multiples of the smallest mini-batch are one.
//
// Threads   values and functions without state; gather() and send() as their communicator.   Failure   as of the communicator.
// Cost      n log n of n rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallel/communicator.h"

namespace neap::parallel {

/// The rows of each rank, as many: of `lengths`, whose number is a multiple of `mini_batch`, and this of `ranks`.
using RowLists = std::vector<std::vector<std::int64_t>>;
[[nodiscard]] RowLists balanced_rows(const std::vector<std::int64_t>& lengths,
                                     std::int64_t mini_batch, std::int64_t ranks);
/// Row i of blocks of `block` rows goes to rank i mod `ranks` (parallel/batch_sharder.h).
[[nodiscard]] RowLists rows_in_turns(std::int64_t rows, std::int64_t block, std::int64_t ranks);
/// The sum of each rank's rows.
[[nodiscard]] std::vector<std::int64_t> tokens_of(const RowLists& lists,
                                                  const std::vector<std::int64_t>& lengths);

class RowDeal {
 public:
  RowDeal(Communicator& ranks, RowLists lists);

  /// This rank's rows (n, ...) of the batch (ranks * n, ...); undefined stays.
  [[nodiscard]] at::Tensor pick(const at::Tensor& batch) const;
  /// The batch of every rank's rows, in host memory; undefined stays.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine) const;
  /// The same of rows (n, T) of which only the first `counts` elements, of each row of the batch, are not `fill`: no
  /// others are sent.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine, const std::vector<std::int64_t>& counts,
                                  std::int64_t fill) const;
  /// Sends each row to the rank that `to` deals it to, and returns the rows that come to this rank. `to` has the same
  /// ranks; it may leave rows of the batch out.
  [[nodiscard]] at::Tensor send(const at::Tensor& mine, const RowDeal& to,
                                const std::vector<std::int64_t>& counts, std::int64_t fill) const;

  /// This rank's rows.
  [[nodiscard]] const std::vector<std::int64_t>& own() const {
    return lists_[static_cast<std::size_t>(ranks_.rank())];
  }

 private:
  Communicator& ranks_;
  RowLists lists_;
  at::Tensor mine_, all_;  // int64: this rank's rows, and those of all, one rank after another
};

}  // namespace neap::parallel
