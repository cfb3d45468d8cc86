#include "spec/keys/token_budgets.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "spec/ranks/context_parallel.h"
#include "spec/recipe/recipe.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

/// The size of a budget that a phase requires.
struct Demand {
  TokenBudget budget;
  ModelId model;
  std::int64_t sequences = 1;  ///< sequences of the longest row
};

// For packed jobs.
std::vector<Demand> demands(const Job& job) {
  std::vector<Demand> out;
  for (const Phase& phase : describe(job).phases)
    if (!phase.is_of_rollout())
      out.push_back({token_budget(job, phase), phase.model, takes_pairs(phase.body) ? 2 : 1});
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

Result<std::vector<std::string>> adapt_token_budgets(
    const ConfigTable& table, const Job& job,
    const std::function<bool(const std::string& origin)>& for_another) {
  std::vector<std::string> adapted;
  if (!job.packs()) return adapted;
  std::map<std::string, std::int64_t> wanted;
  for (const Demand& demand : demands(job)) {
    const ConfigTable::Key& key = *table.find(demand.budget.key);
    const std::int64_t least = least_of(job, demand);
    const bool fixed = key.is_set && !for_another(key.origin);
    if (fixed || demand.budget.tokens >= least) continue;
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
