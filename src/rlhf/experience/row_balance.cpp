#include "rlhf/experience/row_balance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace neap::rlhf {
namespace {

// As in verl: the balance of round robin, and of the balanced assignment.
void describe(const parallel::RowLists& in_turns, const parallel::RowLists& dealt,
              const std::vector<std::int64_t>& lengths, Metrics& metrics) {
  const auto put = [&](const std::string& prefix, const parallel::RowLists& lists) {
    const std::vector<std::int64_t> tokens = parallel::tokens_of(lists, lengths);
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    metrics["global_seqlen/" + prefix + "min"] = static_cast<double>(*least);
    metrics["global_seqlen/" + prefix + "max"] = static_cast<double>(*most);
  };
  put("", in_turns);
  put("balanced_", dealt);
  metrics["global_seqlen/minmax_diff"] =
      metrics["global_seqlen/max"] - metrics["global_seqlen/min"];
  const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  metrics["global_seqlen/mean"] = static_cast<double>(all) / static_cast<double>(dealt.size());
}

// Assigns blocks of `block` rows; `mini_batch` rows form a mini-batch.
parallel::RowLists lists_of(const Context& context, const std::vector<std::int64_t>& lengths,
                            std::int64_t block, std::int64_t mini_batch, Metrics& metrics) {
  const std::int64_t ranks = context.data_ranks().size();
  parallel::RowLists in_turns = parallel::rows_in_turns(std::ssize(lengths), block, ranks);
  if (ranks == 1) return in_turns;
  parallel::RowLists dealt =
      balances(context.job) ? parallel::balanced_rows(lengths, mini_batch, ranks) : in_turns;
  describe(in_turns, dealt, lengths, metrics);
  return dealt;
}

}  // namespace

bool balances(const spec::Job& job) {
  return job.trainer.balance_batch && job.packs();
}

parallel::RowDeal deal_responses(const Context& context, const Experience& all, Metrics& metrics) {
  const spec::Job& job = context.job;
  const at::Tensor lengths = all.sequences.lengths.contiguous();
  const auto* first = lengths.const_data_ptr<std::int64_t>();
  // Mini-batches of the actor and of the critic consist of whole groups of this many prompts.
  std::int64_t prompts = job.actor_mini_batch();
  if (job.has_critic()) prompts = std::gcd(prompts, job.critic_mini_batch());
  return {context.data_ranks(), lists_of(context, {first, first + lengths.numel()}, job.rollout.n,
                                         prompts * job.rollout.n, metrics)};
}

parallel::RowDeal generated_rows(const Context& context, const RowCounts& counts) {
  parallel::Communicator& ranks = context.data_ranks();
  return {ranks, parallel::rows_in_turns(std::ssize(counts.sequences), context.job.rollout.n,
                                         ranks.size())};
}

std::vector<std::size_t> deal_rows(const Context& context, const Rows& rows,
                                   const std::vector<std::size_t>& batch, Metrics& metrics) {
  if (context.data_ranks().alone() || !balances(context.job)) return context.sharder().of(batch);
  std::vector<std::int64_t> lengths;
  run_in_step(context.ranks, [&] {
    for (const std::size_t number : batch) {
      std::int64_t& length = lengths.emplace_back(0);
      const data::StoredRow row = rows.at(number);
      for (const std::vector<std::int64_t>& text : row.texts) length += std::ssize(text);
      // A pair has both responses.
      if (context.job.has_pairs()) length += std::ssize(row.texts.front());
    }
  });
  const parallel::RowLists lists = lists_of(context, lengths, 1, std::ssize(batch), metrics);
  std::vector<std::size_t> out;
  for (const std::int64_t row : lists[static_cast<std::size_t>(context.data_ranks().rank())])
    out.push_back(batch[static_cast<std::size_t>(row)]);
  return out;
}

}  // namespace neap::rlhf
