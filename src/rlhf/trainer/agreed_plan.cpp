#include "rlhf/trainer/agreed_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "parallel/run_collectively.h"
#include "plan/search/advice.h"
#include "plan/search/common_choices.h"
#include "plan/search/kept_pools.h"
#include "spec/recipe/job_change.h"

namespace neap::rlhf {
namespace {

// The outcome of each kind, from its first rank.
std::vector<plan::KindOutcome> outcomes_of(const std::vector<spec::RankKind>& kinds,
                                           const plan::KindOutcome& own,
                                           parallel::Communicator& ranks) {
  const std::vector<double> numbers = own.to_numbers();
  const std::vector<double> counts = ranks.join({static_cast<double>(numbers.size())});
  const std::vector<double> all = ranks.join(numbers);
  std::vector<plan::KindOutcome> out;
  auto begin = all.begin();
  for (std::int64_t rank = 0; rank < std::ssize(counts); ++rank) {
    const auto end = begin + static_cast<std::ptrdiff_t>(counts[static_cast<std::size_t>(rank)]);
    if (rank == kinds[spec::kind_of(kinds, rank)].first)
      out.push_back(plan::KindOutcome::from_numbers({begin, end}));
    begin = end;
  }
  return out;
}

}  // namespace

plan::Target least_target(plan::Target own, const spec::RankKind& among,
                          parallel::Communicator& ranks) {
  const std::vector<double> all = ranks.join(
      {static_cast<double>(own.capacity.count()), static_cast<double>(own.host_memory.count())});
  const auto least = [&](std::int64_t which) {
    double out = 0;  // unlimited
    for (std::int64_t rank = among.first; rank < among.first + among.count; ++rank) {
      const double each = all.at(static_cast<std::size_t>(2 * rank + which));
      if (each > 0) out = out > 0 ? std::min(out, each) : each;
    }
    return Bytes(static_cast<std::uint64_t>(out));
  };
  own.capacity = least(0);
  own.host_memory = least(1);
  return own;
}

namespace {

plan::MemoryPlan plan_of_kind(const spec::Job& job, const plan::Target& own,
                              parallel::Communicator& ranks) {
  const std::vector<spec::RankKind> kinds = spec::rank_kinds(job.model_meshes());
  const std::size_t kind = spec::kind_of(kinds, ranks.rank());
  plan::Target target = least_target(own, kinds[kind], ranks);
  target.rank = ranks.rank();
  plan::MemoryPlan plan;
  if (kinds.size() == 1) {
    parallel::run_collectively(ranks, [&] { plan = value_or_throw(plan::make_plan(job, target)); });
    return plan;
  }
  plan::CommonChoices common(job);
  plan::KindPlans plans(job, target);
  std::vector<plan::KindOutcome> outcomes;
  do {
    plan::KindOutcome outcome;
    parallel::run_collectively(ranks, [&] { outcome = value_or_throw(plans.plan(common)); });
    outcomes = outcomes_of(kinds, outcome, ranks);
  } while (common.take(std::move(outcomes)));
  const std::optional<std::size_t> refused = common.refused();
  parallel::run_collectively(ranks, [&] {
    if (refused == kind) throw_if_error(plans.refusal(common));
    if (refused) return;
    plan = value_or_throw(plans.take(common));
    throw_if_error(plan::keep_pools(job, target, plan));
  });
  return plan;
}

}  // namespace

plan::MemoryPlan agreed_plan(const spec::Job& job, const plan::Target& own,
                             parallel::Communicator& ranks) {
  plan::MemoryPlan plan = plan_of_kind(job, own, ranks);
  std::string choices;
  for (const std::string& text : spec::assignments(plan.changes)) choices += text + " ";
  ranks.expect_same(
      {{"what the plan chose of the job's keys (memory.allow; run `neap doctor` on every machine "
        "or on none)",
        choices}});
  return plan;
}

}  // namespace neap::rlhf
