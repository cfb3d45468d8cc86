// Moves rows of a batch between ranks for a model with another data-parallel size
// (spec::Job::mesh(model)). This rank sends the rows that the job assigns to it, and computes the
// rows that the model's mesh assigns to it.
//
// All rows pass through every rank's host memory. Rows stay in their mini-batch, and are balanced
// by tokens if the job balances rows (rlhf/experience/row_balance.h).
//
// Threads   one at a time.
// Failure   Error, as of a communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "parallel/row_deal.h"
#include "rlhf/trainer/trainer.h"
#include "train/sequences.h"

namespace neap::rlhf {

class RowExchange {
 public:
  /// `mine` are this rank's rows, in `mini_batches` mini-batches; other ranks may have other
  /// numbers of rows. Every rank calls it and the functions below. It does nothing for a model with
  /// the job's data-parallel size.
  RowExchange(const Context& context, spec::ModelId model, const train::Sequences& mine,
              std::int64_t mini_batches = 1);

  /// Converts a tensor with an entry for each of this rank's rows to the rows that it computes.
  [[nodiscard]] at::Tensor take(const at::Tensor& mine) const;
  /// For sequences that are not packed.
  [[nodiscard]] train::Sequences take(const train::Sequences& mine) const;
  /// Converts results of the computed rows back to this rank's rows. An undefined tensor stays
  /// undefined.
  [[nodiscard]] at::Tensor give_back(const at::Tensor& computed) const;

 private:
  // The whole batch.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine) const;

  std::int64_t own_ = 0,
               // Rows of this rank; the same, padded to the largest number of any rank by repeating
      // rows.
      padded_ = 0;
  std::optional<parallel::RowDeal> of_job_, of_model_;
};

}  // namespace neap::rlhf
