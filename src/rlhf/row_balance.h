// Rows of a step dealt to the ranks that divide its batch by their tokens (trainer.balance_batch).
//
// Threads   one at a time.   Failure   Error, as of a communicator, and StepFailure for rows that cannot be read.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/row_deal.h"
#include "rlhf/experience.h"
#include "rlhf/trainer.h"

namespace neap::rlhf {

/// Rows are dealt by their tokens: padded ones are all as long.
[[nodiscard]] bool balances(const spec::Job& job);

/// Who scores and trains which responses of a whole batch, `n` to a prompt: those of each mini-batch stay in it. Without
/// balance as the prompts are dealt. Says how even ranks' tokens are where there are several.
[[nodiscard]] parallel::RowDeal deal_responses(const Context& context, const Experience& all,
                                               Metrics& metrics);

/// The rows of a whole batch as the prompts are dealt.
[[nodiscard]] parallel::RowDeal generated_rows(const Context& context, const RowCounts& counts);

/// This rank's of `batch`, the numbers of rows that make one mini-batch. Every rank calls it.
[[nodiscard]] std::vector<std::size_t> deal_rows(const Context& context, const Rows& rows,
                                                 const std::vector<std::size_t>& batch,
                                                 Metrics& metrics);

}  // namespace neap::rlhf
