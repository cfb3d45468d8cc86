#include "spec/keys/token_budgets.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "spec/ranks/context_parallel.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

/// The budget that a key sets.
struct Budget {
  const char* key;
  std::int64_t tokens;
};

/// The size of a budget that a model requires.
struct Demand {
  Budget budget;
  ModelId model;
  std::int64_t sequences = 1;  ///< sequences of the longest row
};

// The budget of a key, or of the fallback if the key is unset.
Budget or_else(Budget budget, const Budget& otherwise) {
  return budget.tokens != 0 ? budget : otherwise;
}

// For packed jobs. Evaluation only generates, so it has none.
std::vector<Demand> demands(const Job& job) {
  if (job.task == Task::kEval) return {};
  const ModelId main = job.main_model();
  const ModelId reference = job.reference_is_actor_base() ? main : ModelId::kReference;
  const Budget of_reference{"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
                            job.reference_max_token_len_per_gpu};
  std::vector<Demand> out;
  if (!job.has_rollout()) {
    const Budget rows{"data.max_token_len_per_gpu", job.data.max_token_len_per_gpu};
    out.push_back({rows, main, job.has_pairs() ? 2 : 1});
    if (job.uses_reference()) out.push_back({or_else(of_reference, rows), reference});
    return out;
  }
  const Budget training{"actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
                        job.actor.ppo_max_token_len_per_gpu};
  const Budget scoring = or_else({"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
                                  job.rollout.log_prob_max_token_len_per_gpu},
                                 training);
  out = {{training, main}, {scoring, main}};
  if (job.uses_reference()) out.push_back({or_else(of_reference, scoring), reference});
  if (job.has_reward_model())
    out.push_back(
        {or_else({"reward_model.forward_max_token_len_per_gpu", job.reward_max_token_len_per_gpu},
                 scoring),
         ModelId::kReward});
  if (!job.has_critic()) return out;
  const Budget of_critic{"critic.ppo_max_token_len_per_gpu", job.critic.ppo_max_token_len_per_gpu};
  out.push_back({of_critic, ModelId::kCritic});
  out.push_back(
      {or_else({"critic.forward_max_token_len_per_gpu", job.critic.forward_max_token_len_per_gpu},
               of_critic),
       ModelId::kCritic});
  return out;
}

// Context-parallel ranks share their micro-batches, so their budgets add up.
std::int64_t least_of(const Job& job, const Demand& demand) {
  return rows_of_each(demand.sequences * job.max_sequence_length(),
                      job.context_ranks(demand.model));
}

}  // namespace

Status check_token_budgets(const Job& job) {
  if (!job.packs()) return {};
  for (const Demand& demand : demands(job)) {
    const std::int64_t least = least_of(job, demand);
    if (demand.budget.tokens >= least) continue;
    const std::int64_t ranks = job.context_ranks(demand.model);
    return wrong(
        format("{} is {}; it has to be at least {}: {}data.max_prompt_length {} + "
               "data.max_response_length {}{}",
               demand.budget.key, demand.budget.tokens, least,
               demand.sequences > 1 ? "2 x of a pair, " : "", job.data.max_prompt_length,
               job.data.max_response_length,
               ranks > 1 ? format(", divided by {} ranks", ranks) : std::string()));
  }
  return {};
}

Result<std::vector<std::string>> adapt_token_budgets(const ConfigTable& table, const Job& job) {
  std::vector<std::string> adapted;
  if (!job.packs()) return adapted;
  std::map<std::string, std::int64_t> wanted;
  for (const Demand& demand : demands(job)) {
    const ConfigTable::Key& key = *table.find(demand.budget.key);
    const std::int64_t least = least_of(job, demand);
    if (key.is_set || demand.budget.tokens >= least) continue;
    // The maximum cannot be exceeded. The check that follows reports what is too long.
    if (static_cast<double>(least) > *key.maximum) continue;
    std::int64_t& most = wanted[demand.budget.key];
    most = std::max(most, least);
  }
  for (const auto& [path, tokens] : wanted) {
    NEAP_TRY(table.find(path)->assign(Json(tokens)));
    adapted.push_back(format("{}={}", path, tokens));
  }
  return adapted;
}

}  // namespace neap::spec
