// Rows of a batch for a model whose batches other ranks share (the axis "data" of spec::Job::mesh(model)): this rank has
// the rows that the job deals it, and computes those that the model's ranks deal it.
//
// All rows pass every rank's host memory. Those of each mini-batch stay in it, and are dealt by their tokens where the
// job balances them (rlhf/row_balance.h).
//
// Threads   one at a time.   Failure   Error, as of a communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "parallel/row_deal.h"
#include "rlhf/trainer.h"
#include "train/sequences.h"

namespace neap::rlhf {

class RowExchange {
 public:
  /// Of rows as `mine`, of which other ranks may have more or fewer; in mini-batches, as many as they. Every rank calls
  /// it, and what follows. Does nothing for a model whose batches are shared as the job's.
  RowExchange(const Context& context, spec::ModelId model, const train::Sequences& mine,
              std::int64_t mini_batches = 1);

  /// Of a tensor with one entry for each of this rank's rows: those of the rows that it computes.
  [[nodiscard]] at::Tensor take(const at::Tensor& mine) const;
  /// Which are not packed.
  [[nodiscard]] train::Sequences take(const train::Sequences& mine) const;
  /// The reverse, of what it computed. Undefined stays.
  [[nodiscard]] at::Tensor give_back(const at::Tensor& computed) const;

 private:
  // The batch of all.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine) const;

  std::int64_t
      own_ = 0,
      padded_ = 0;  // rows of this rank, and with some of them again as many as every other one has
  std::optional<parallel::RowDeal> of_job_, of_model_;
};

}  // namespace neap::rlhf
