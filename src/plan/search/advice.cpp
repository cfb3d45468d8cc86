#include "plan/search/advice.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "plan/results/plan_words.h"
#include "plan/search/kept_pools.h"
#include "plan/search/plan_search.h"
#include "plan/search/tunables.h"

namespace neap::plan {
namespace {

// A change may be impossible for a model, such as a LoRA rank over a layer's width. Then it is not
// a candidate.
bool least_of(const spec::Job& job, const Target& target, Bytes& least) {
  if (!job.validate().ok()) return false;
  const Result<Bytes> found = least_capacity(job, target);
  if (!found.ok()) return false;
  least = *found;
  return true;
}

}  // namespace

std::vector<Suggestion> find_knobs(const spec::Job& job, const Target& target) {
  Bytes now;
  if (!least_of(job, target, now)) return {};
  std::vector<Suggestion> suggestions;
  for (const Tunable& tunable : tunables(job)) {
    Suggestion best;
    best.min_capacity = now;
    // Goes as far as the change helps, but only one level if it changes the training.
    std::vector<spec::JobChange> last;
    for (int level = 1; level == 1 || tunable.keeps_training; ++level) {
      Suggestion suggestion;
      suggestion.keeps_training = tunable.keeps_training;
      suggestion.effect = tunable.effect;
      suggestion.changes = tunable.changes(job, level);
      if (suggestion.changes.empty() || suggestion.changes == last) break;
      last = suggestion.changes;
      spec::Job changed = job;
      spec::apply(suggestion.changes, changed);
      if (!least_of(changed, target, suggestion.min_capacity)) break;
      if (suggestion.min_capacity < best.min_capacity) best = suggestion;
    }
    if (best.min_capacity < now) suggestions.push_back(std::move(best));
  }
  const auto rank = [&](const Suggestion& s) {
    return std::tuple(s.min_capacity > target.capacity, !s.keeps_training, s.min_capacity);
  };
  std::stable_sort(suggestions.begin(), suggestions.end(),
                   [&](const Suggestion& a, const Suggestion& b) { return rank(a) < rank(b); });
  return suggestions;
}

namespace {

constexpr std::size_t kRanked = 3;
constexpr std::size_t kMostSuggestions = 5;
constexpr int kOtherLevels = 6;  // levels of a change of the training

// Adds suggestions to the error of a plan that does not fit.
Status with_suggestions(const spec::Job& job, const Target& target, const Status& status) {
  if (status.code() != ErrorCode::kDoesNotFit) return status;
  const std::string text = knobs_text(job, target);
  return {ErrorCode::kDoesNotFit, status.message() + (text.empty() ? "" : ". " + text)};
}

// Quoted for a shell.
std::string quoted(const std::string& assignment) {
  return assignment.find('[') == std::string::npos ? assignment : "'" + assignment + "'";
}

// The fastest plan that fits, then smaller ones. A plan is left out if a smaller one is at least as
// fast.
Result<std::vector<MemoryPlan>> ranked_plans(PlanSearch& search, Bytes capacity) {
  std::vector<MemoryPlan> plans;
  NEAP_TRY_ASSIGN(MemoryPlan first, search.fastest(capacity));
  plans.push_back(std::move(first));
  while (plans.size() < kRanked) {
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> next, search.smaller(plans.back()));
    if (!next) break;
    while (!plans.empty() && plans.back().seconds() >= next->seconds()) plans.pop_back();
    plans.push_back(std::move(*next));
  }
  return plans;
}

// Jobs with a changed training, the smallest change first.
struct OtherTraining {
  spec::Job job;
  std::vector<spec::JobChange> changes;
  int penalty = 0;
};
std::vector<OtherTraining> trainings_beside(const spec::Job& job) {
  std::vector<OtherTraining> all = {{job, {}, 0}};
  for (const Tunable& tunable : other_trainings(job)) {
    const std::size_t before = all.size();
    for (int level = 1; level <= kOtherLevels; ++level) {
      for (std::size_t i = 0; i < before; ++i) {
        OtherTraining other = all[i];
        const std::vector<spec::JobChange> more = tunable.changes(other.job, level);
        if (more.empty()) continue;
        spec::apply(more, other.job);
        if (!other.job.validate().ok()) continue;
        other.changes.insert(other.changes.end(), more.begin(), more.end());
        other.penalty += level * tunable.weight;
        all.push_back(std::move(other));
      }
    }
  }
  all.erase(all.begin());
  std::stable_sort(all.begin(), all.end(), [](const OtherTraining& a, const OtherTraining& b) {
    return a.penalty < b.penalty;
  });
  return all;
}

}  // namespace

std::string knobs_text(const spec::Job& job, const Target& target) {
  const std::vector<Suggestion> found = find_knobs(job, target);
  if (found.empty()) return "";
  std::string text = "Each of these alone lowers it:";
  for (std::size_t i = 0; i < std::min(found.size(), kMostSuggestions); ++i) {
    std::string changes;
    for (const std::string& assignment : spec::assignments(found[i].changes))
      changes += (changes.empty() ? "" : " ") + quoted(assignment);
    text += format("\n  {}: {} {} ({})", changes,
                   found[i].min_capacity <= target.capacity ? "fits in" : "needs",
                   capacity_text(found[i].min_capacity), found[i].effect);
  }
  return text + "\n`neap plan --fit SIZE` looks for a combination";
}

namespace {

using Plans = Result<std::vector<MemoryPlan>>;

// Empty if nothing fits.
Plans same_training(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(PlanSearch search, PlanSearch::make(job, target, PlanSearch::Scope::kWide));
  Plans plans = ranked_plans(search, target.capacity);
  if (!plans.ok() && plans.status().code() == ErrorCode::kDoesNotFit)
    return std::vector<MemoryPlan>();
  return plans;
}

Plans any_training(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(PlanSearch same, PlanSearch::make(job, target, PlanSearch::Scope::kWide));
  Plans plans = ranked_plans(same, target.capacity);
  if (plans.ok() || plans.status().code() != ErrorCode::kDoesNotFit) return plans;
  NEAP_TRY_ASSIGN(Bytes smallest, same.least_capacity());
  for (const OtherTraining& other : trainings_beside(job)) {
    Result<PlanSearch> search = PlanSearch::make(other.job, target, PlanSearch::Scope::kWide);
    // a change may be impossible for a model, such as a LoRA rank over a layer's width
    if (!search.ok()) continue;
    const Result<Bytes> least = search->least_capacity();
    if (!least.ok()) continue;
    smallest = std::min(smallest, *least);
    if (*least > target.capacity) continue;
    Plans found = ranked_plans(*search, target.capacity);
    if (!found.ok()) continue;
    for (MemoryPlan& plan : *found)
      plan.changes.insert(plan.changes.begin(), other.changes.begin(), other.changes.end());
    return found;
  }
  const std::string host =
      target.host_memory.is_zero()
          ? ""
          : format(" with {} of host memory for what leaves the device", target.host_memory);
  if (smallest == Bytes(~0ull))
    return Status(ErrorCode::kDoesNotFit,
                  format("No combination of micro batches, recomputation, LoRA and response length "
                         "fits{}, whatever the device's memory",
                         host));
  return Status(ErrorCode::kDoesNotFit,
                format("No combination of micro batches, recomputation, LoRA and response length "
                       "fits into {}{}; the least that was found is {}",
                       target.capacity, host, capacity_text(smallest)));
}

}  // namespace

Result<std::vector<MemoryPlan>> find_fit(const spec::Job& job, const Target& target,
                                         HostLimit host) {
  if (host.bytes.is_zero() || !job.memory.host_budget.is_zero()) return any_training(job, target);
  Target unlimited = target;
  unlimited.host_memory = Bytes();
  NEAP_TRY_ASSIGN(std::vector<MemoryPlan> more, same_training(job, unlimited));
  const auto fits_host = [&](const MemoryPlan& plan) { return plan.host_bytes <= host.bytes; };
  if (!more.empty() && std::all_of(more.begin(), more.end(), fits_host)) return more;
  Target limited = target;
  limited.host_memory = host.bytes;
  Plans within = host.asked ? any_training(job, limited) : same_training(job, limited);
  if (!within.ok()) {
    if (within.status().code() != ErrorCode::kDoesNotFit || more.empty()) return within;
    within = std::vector<MemoryPlan>();
  }
  std::erase_if(more, fits_host);
  if (within->empty() && more.empty()) return any_training(job, unlimited);
  // Keeps at least one place for plans that need more host memory.
  std::vector<MemoryPlan> plans = *std::move(within);
  if (!more.empty()) plans.resize(std::min(plans.size(), kRanked - 1));
  for (MemoryPlan& plan : more) {
    if (plans.size() == kRanked) break;
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::vector<std::string_view> effects_of(const MemoryPlan& plan) {
  std::vector<std::string_view> effects;
  for (const spec::JobChange& change : plan.changes) {
    const std::string_view effect = effect_of(change);
    if (!effect.empty() && std::find(effects.begin(), effects.end(), effect) == effects.end())
      effects.emplace_back(effect);
  }
  return effects;
}

std::string Outlook::to_text(const MemoryPlan& plan, Bytes context) const {
  if (!plan.fits()) return "";
  const double now = plan.seconds();
  std::string out = format("\nChosen: {}.\n", sentence_of(plan));
  if (faster) {
    out +=
        format("Next faster: {:.0f} % less time needs {} more: {}.\n",
               100 * (1 - faster->seconds() / now), faster->peak - plan.peak, sentence_of(*faster));
  } else {
    out += "Next faster: no plan of any size takes 5 % less time.\n";
  }
  if (smaller) {
    out += format("Next smaller: {} less costs {:.3g} s per step: {}.\n", plan.peak - smaller->peak,
                  smaller->seconds() - now, sentence_of(*smaller));
  } else {
    out += "Next smaller: none.\n";
  }
  out += format("Minimum capacity: {}", capacity_text(least_capacity));
  if (!context.is_zero())
    out +=
        format(", {} in nvidia-smi with CUDA's context", capacity_text(least_capacity + context));
  out += ".\n";
  return out;
}

Json Outlook::to_json() const {
  const auto of = [](const std::optional<MemoryPlan>& plan) {
    return plan ? summary_json(*plan) : Json();
  };
  return {
      {"faster", of(faster)}, {"smaller", of(smaller)}, {"min_capacity", least_capacity.count()}};
}

Result<PlanWithOutlook> make_plan_with_outlook(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(PlanSearch search, PlanSearch::make(job, target, PlanSearch::Scope::kConfigured));
  PlanWithOutlook out;
  Result<MemoryPlan> plan = search.fastest(target.capacity);
  if (!plan.ok()) return with_suggestions(job, target, plan.status());
  out.plan = std::move(plan).value();
  NEAP_TRY_ASSIGN(out.outlook.least_capacity, search.least_capacity());
  if (!out.plan.fits()) return out;
  NEAP_TRY_ASSIGN(out.outlook.faster, search.faster(out.plan));
  NEAP_TRY_ASSIGN(out.outlook.smaller, search.smaller(out.plan));
  return out;
}

Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target) {
  return make_plan(job, target, FixedChoices());
}

Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target,
                             const FixedChoices& fixed) {
  NEAP_TRY_ASSIGN(PlanSearch search,
                  PlanSearch::make(job, target, PlanSearch::Scope::kConfigured, fixed));
  Result<MemoryPlan> plan = search.fastest(target.capacity);
  if (!plan.ok()) return with_suggestions(job, target, plan.status());
  NEAP_TRY(keep_pools(job, target, *plan));
  return plan;
}

Result<PlanOrLeast> plan_or_least(const spec::Job& job, const Target& target,
                                  const FixedChoices& fixed) {
  NEAP_TRY_ASSIGN(PlanSearch search,
                  PlanSearch::make(job, target, PlanSearch::Scope::kConfigured, fixed));
  PlanOrLeast out;
  Result<MemoryPlan> plan = search.fastest(target.capacity);
  if (plan.ok()) {
    out.plan = std::move(plan).value();
  } else if (plan.status().code() == ErrorCode::kDoesNotFit) {
    NEAP_TRY_ASSIGN(out.least, search.least_capacity());
  } else {
    return plan.status();
  }
  return out;
}

Result<Bytes> least_capacity(const spec::Job& job, const Target& target) {
  NEAP_TRY_ASSIGN(PlanSearch search, PlanSearch::make(job, target, PlanSearch::Scope::kConfigured));
  return search.least_capacity();
}

}  // namespace neap::plan
