#include "rlhf/experience/row_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "bridge/runtime.h"
#include "rlhf/experience/row_balance.h"

namespace neap::rlhf {

RowExchange::RowExchange(const Context& context, spec::ModelId model, const train::Sequences& mine,
                         std::int64_t mini_batches)
    : own_(mine.size()), padded_(own_) {
  parallel::Communicator& from = context.data_ranks();
  parallel::Communicator& to = context.model_groups.of(model).data();
  const auto lines = [&](spec::ModelId of) { return context.job.mesh(of).span(spec::Axis::kData); };
  if (from.size() == to.size() && (to.alone() || lines(context.job.main_model()) == lines(model)))
    return;
  const bridge::HostScope host;
  for (const double rows : from.join({static_cast<double>(own_)}))
    padded_ = std::max(padded_, static_cast<std::int64_t>(rows));
  const std::int64_t multiple = to.size() / std::gcd<std::int64_t>(from.size(), to.size());
  padded_ = (padded_ + multiple - 1) / multiple * multiple;
  const std::int64_t all = padded_ * from.size();
  const auto in_turns = [&](const parallel::Communicator& ranks) {
    return parallel::rows_in_turns(all, all / mini_batches / ranks.size(), ranks.size());
  };
  of_job_.emplace(from, in_turns(from));
  const at::Tensor lengths = gather(mine.lengths).contiguous();
  const auto* first = lengths.const_data_ptr<std::int64_t>();
  of_model_.emplace(
      to, balances(context.job)
              ? parallel::balanced_rows({first, first + all}, all / mini_batches, to.size())
              : in_turns(to));
}

at::Tensor RowExchange::gather(const at::Tensor& mine) const {
  const bridge::HostScope host;
  if (padded_ == own_) return of_job_->gather(mine);
  const at::Tensor last = mine.narrow(0, own_ - 1, 1);
  std::vector<at::Tensor> rows(static_cast<std::size_t>(padded_ - own_) + 1, last);
  rows.front() = mine;
  return of_job_->gather(at::cat(rows));
}

at::Tensor RowExchange::take(const at::Tensor& mine) const {
  return of_model_ && mine.defined() ? of_model_->pick(gather(mine)) : mine;
}

train::Sequences RowExchange::take(const train::Sequences& mine) const {
  return {take(mine.tokens), take(mine.columns), take(mine.targets),
          take(mine.mask),   take(mine.last),    take(mine.lengths)};
}

at::Tensor RowExchange::give_back(const at::Tensor& computed) const {
  if (!of_model_ || !computed.defined()) return computed;
  const bridge::HostScope host;
  return of_job_->pick(of_model_->gather(computed)).narrow(0, 0, own_).contiguous();
}

}  // namespace neap::rlhf
