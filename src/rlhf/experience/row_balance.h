// Balanced assignment of a step's rows to data-parallel ranks, by tokens (trainer.balance_batch).
//
// Threads   one at a time.
// Failure   Error, as of a communicator; StepFailure for rows that cannot be read.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/row_deal.h"
#include "rlhf/experience/experience.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

/// Whether rows are assigned by tokens. Padded rows all have the same length.
[[nodiscard]] bool balances(const spec::Job& job);

/// Assigns the responses of a whole batch, `n` per prompt, to ranks for scoring and training.
/// Responses stay in their mini-batch. Without balancing it is the assignment of the prompts. With
/// several ranks it adds metrics of the balance.
[[nodiscard]] parallel::RowDeal deal_responses(const Context& context, const Experience& all,
                                               Metrics& metrics);

/// The assignment of the batch's rows that follows from the prompts.
[[nodiscard]] parallel::RowDeal generated_rows(const Context& context, const RowCounts& counts);

/// This rank's row numbers of `batch`, which is one mini-batch. Every rank calls it.
[[nodiscard]] std::vector<std::size_t> deal_rows(const Context& context, const Rows& rows,
                                                 const std::vector<std::size_t>& batch,
                                                 Metrics& metrics);

}  // namespace neap::rlhf
