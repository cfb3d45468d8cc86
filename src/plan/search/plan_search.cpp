#include "plan/search/plan_search.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/residency/least_capacity.h"

namespace neap::plan {
namespace {

constexpr double kInexactGain = 0.95;  // relative to the time of exact plans
constexpr double kFasterGain = 0.95;
constexpr double kOffloadGain = 0.999;  // of a step that offloads more: it copies more
constexpr double kRefinedGain = 0.995;  // of the seconds, for memory of graphs or chunks of logits
constexpr double kSmallerShare = 0.9;
constexpr double kCapacityStep = 0.02;  // minimum relative difference of two plans' memory
constexpr double kFasterStep = 0.04;    // relative accuracy of a faster plan's memory
// The same seconds can differ by the order of sums.
constexpr double kSame = 1e-9;
constexpr Bytes kNoCapacity(~0ull);
constexpr std::size_t kRounds = 2;  // over the kinds of micro-batches

bool is_faster(double seconds, double limit) {
  return seconds < limit * (1 - kSame);
}

// Zero: unlimited.
bool may_fit(const MemoryPlan& plan, Bytes capacity) {
  return capacity.is_zero() || least_needed(plan) <= capacity;
}

Bytes share_of(Bytes bytes, double share) {
  return Bytes(static_cast<std::uint64_t>(static_cast<double>(bytes.count()) * share));
}

}  // namespace

Result<PlanSearch> PlanSearch::make(const spec::Job& job, const Target& target, Scope scope,
                                    FixedChoices fixed) {
  NEAP_TRY_ASSIGN(JobVariants variants, JobVariants::make(job, target, scope, std::move(fixed)));
  return PlanSearch(std::move(variants));
}

Result<MemoryPlan> PlanSearch::fastest(Bytes capacity) {
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> best, fastest_within({capacity}));
  if (!best && variants_.job().memory.offload == spec::Residency::kAll) {
    // A run may be attempted with the plan that exceeds the capacity by least.
    NEAP_TRY_ASSIGN(const Bytes least, least_capacity());
    NEAP_TRY_ASSIGN(best, fastest_within({least}));
    if (best) best->capacity = capacity;
  }
  if (!best) return refusal_of(capacity);
  // Tags are chosen by bytes. If more are offloaded, there may be room to hide more copies.
  while (best->overlap && best->move_seconds > 0) {
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found,
                    fastest_within({share_of(best->peak, kSmallerShare), best->seconds()}));
    if (!found) break;
    if (variants_.changes_more(*found, *best) &&
        !is_faster(found->seconds(), best->seconds() * kInexactGain))
      break;
    best = std::move(found);
    best->capacity = capacity;
  }
  return std::move(*best);
}

Result<bool> PlanSearch::replaced(MemoryPlan& best, const spec::StepModes& modes,
                                  const JobVariants::Levels& levels) {
  NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(best.variant.states, levels));
  if (variant == nullptr) return false;
  NEAP_TRY_ASSIGN(MemoryPlan plan, variant->drafts->draft(modes, Accuracy::kQuick));
  plan.capacity = best.capacity;
  if (!may_fit(plan, best.capacity)) return false;
  NEAP_TRY_ASSIGN(const bool found, variant->drafts->solve(plan, best.seconds() * kRefinedGain));
  if (!found) return false;
  plan.changes = variant->changes;
  plan.variant = variant->choice;
  best = std::move(plan);
  return true;
}

Status PlanSearch::enlarge_logits(MemoryPlan& best) {
  if (!variants_.may_reorder_sums()) return {};
  for (const std::int64_t chunk : spec::kLargerLogitsChunks) {
    spec::StepModes modes = best.modes;
    modes.logits_chunk = chunk;
    NEAP_TRY_ASSIGN(const bool found, replaced(best, modes, best.variant.levels));
    if (found) break;
  }
  return {};
}

Result<double> PlanSearch::saved_by_logits(const MemoryPlan& plan) {
  if (!variants_.may_reorder_sums()) return 0.0;
  NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(plan.variant.states, plan.variant.levels));
  spec::StepModes modes = plan.modes;
  NEAP_TRY_ASSIGN(const MemoryPlan before, variant->drafts->draft(modes, Accuracy::kQuick));
  modes.logits_chunk = spec::kLargerLogitsChunks.front();
  NEAP_TRY_ASSIGN(const MemoryPlan after, variant->drafts->draft(modes, Accuracy::kQuick));
  return std::max(0.0, before.operation_seconds() - after.operation_seconds());
}

// The result with bfloat16 states bounds the search for an exact plan. The exact plan wins unless
// it is slower by more than kInexactGain.
PlanSearch::Found PlanSearch::fastest_within(Limits limits) {
  std::optional<MemoryPlan> best;
  for (std::size_t states = variants_.states(); states-- > 0;) {
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_of_rollouts(states, limits));
    if (!found) continue;
    if (limits.any) return found;
    limits.seconds = std::min(limits.seconds, found->seconds() / kInexactGain);
    best = std::move(found);
  }
  if (best) variants_.add_opened(*best);
  return best;
}

// Decoding fewer sequences together changes results, so it must save time as bfloat16 states do. It
// saves none of the operations.
PlanSearch::Found PlanSearch::fastest_of_rollouts(std::size_t states, Limits limits) {
  const Linked whole{.states = states};
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> best, fastest_of_graphs(whole, limits));
  if (!variants_.may_decode_fewer() || (best && limits.any)) return best;
  if (best) {
    limits.seconds = std::min(limits.seconds, best->seconds() * kInexactGain);
    NEAP_TRY_ASSIGN(double least, least_seconds(whole));
    NEAP_TRY_ASSIGN(const std::string_view no_graphs, variants_.no_graphs_reason());
    if (no_graphs.empty()) {
      NEAP_TRY_ASSIGN(const double in_graphs, least_seconds({.states = states, .graphs = true}));
      least = std::min(least, in_graphs);
    }
    if (!is_faster(least, limits.seconds)) return best;
  }
  NEAP_TRY_ASSIGN(
      std::optional<MemoryPlan> fewer,
      fastest_of_graphs({.states = states, .decoded = JobVariants::Decoded::kFewer}, limits));
  return fewer ? std::move(fewer) : std::move(best);
}

PlanSearch::Found PlanSearch::fastest_of_graphs(Linked linked, Limits limits) {
  NEAP_TRY_ASSIGN(const std::string_view reason, variants_.no_graphs_reason());
  std::optional<MemoryPlan> best;
  if (reason.empty()) {
    linked.graphs = true;
    NEAP_TRY_ASSIGN(best, fastest_of_steps(linked, limits));
  }
  if (best && limits.any) return best;
  if (best) limits.seconds = best->seconds();
  linked.graphs = false;
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> eager, fastest_of_steps(linked, limits));
  if (!eager || limits.any) return eager ? eager : best;
  if (!eager->modes.graphs)
    eager->no_graphs = reason.empty() ? "they do not fit, or are not faster" : reason;
  return eager;
}

// Shorter prefill passes leave more memory for graphs. Their products may have another order of
// sums.
Status PlanSearch::shorten_prefill(MemoryPlan& best) {
  NEAP_TRY_ASSIGN(const std::string_view reason, variants_.no_graphs_reason());
  if (!reason.empty() || !variants_.may_reorder_sums()) return {};
  spec::StepModes modes = best.modes;
  modes.graphs = true;
  JobVariants::Levels levels = best.variant.levels;
  while (++levels.back() <= variants_.deepest().back()) {
    NEAP_TRY_ASSIGN(const bool found, replaced(best, modes, levels));
    if (found) break;
  }
  return {};
}

PlanSearch::Found PlanSearch::fastest_of_steps(Linked linked, Limits limits) {
  std::optional<MemoryPlan> best;
  for (std::size_t offload = 0; offload < kOffloadSteps; ++offload) {
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_of_sizes(linked, offload, limits));
    if (found && limits.any) return found;
    if (found) {
      // A slower plan may have room for larger chunks.
      NEAP_TRY_ASSIGN(double saved, saved_by_logits(*found));
      NEAP_TRY(enlarge_logits(*found));
      // With more on the device there may be no room for graphs.
      const double eager = found->seconds();
      if (!linked.graphs) NEAP_TRY(shorten_prefill(*found));
      saved += eager - found->seconds();
      if (!best || is_faster(found->seconds(), best->seconds() * kOffloadGain))
        best = std::move(found);
      limits.seconds = std::min(limits.seconds, best->seconds() * kOffloadGain + saved);
    }
    if (limits.capacity.is_zero()) {
      // Fixed choices may leave no drafts.
      NEAP_TRY_ASSIGN(const bool any, has_drafts(linked, offload));
      if (any) break;
    }
    // With less of a model on the device there is room for larger groups of micro-batches, and for
    // more that need not be recomputed. Nothing is faster than a plan without either.
    NEAP_TRY_ASSIGN(const double bound, offload == 0 ? least_seconds(linked) : Result<double>(0.0));
    if (!is_faster(bound, limits.seconds)) break;
  }
  return best;
}

// A lower bound for plans that offload no layers.
Result<double> PlanSearch::least_seconds(Linked linked) {
  double least = std::numeric_limits<double>::infinity();
  NEAP_TRY_ASSIGN(Variant* const variant,
                  variants_.at(linked.states, variants_.together(linked.decoded).front()));
  if (variant == nullptr) return 0.0;
  NEAP_TRY_ASSIGN(const std::vector<Draft>* const drafts, drafts_of(*variant, {0, linked.graphs}));
  for (const Draft& draft : *drafts) least = std::min(least, draft.least_seconds);
  return drafts->empty() ? 0.0 : least;
}

Result<bool> PlanSearch::has_drafts(Linked linked, std::size_t offload) {
  for (const JobVariants::Levels& levels : variants_.together(linked.decoded)) {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(linked.states, levels));
    if (variant == nullptr) continue;
    NEAP_TRY_ASSIGN(const std::vector<Draft>* const drafts,
                    drafts_of(*variant, {offload, linked.graphs}));
    if (!drafts->empty()) return true;
  }
  return false;
}

// Smaller sizes need less memory.
Result<std::size_t> PlanSearch::first_that_may_fit(const std::vector<JobVariants::Levels>& sizes,
                                                   Linked linked, std::size_t offload,
                                                   Bytes capacity) {
  std::size_t low = 0, high = sizes.size();
  if (capacity.is_zero() || variants_.job().residency() != spec::Residency::kAuto) return low;
  while (low < high) {
    // The smallest first: often no size fits.
    const std::size_t middle = high == sizes.size() ? high - 1 : low + (high - low) / 2;
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(linked.states, sizes[middle]));
    if (variant == nullptr) return std::size_t{0};
    NEAP_TRY_ASSIGN(const std::vector<Draft>* const drafts,
                    drafts_of(*variant, {offload, linked.graphs}));
    const bool any = std::any_of(drafts->begin(), drafts->end(),
                                 [&](const Draft& draft) { return may_fit(draft.plan, capacity); });
    if (any) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

PlanSearch::Found PlanSearch::fastest_of_sizes(Linked linked, std::size_t offload, Limits limits) {
  std::optional<MemoryPlan> best;
  JobVariants::Levels levels;  // levels of the best plan
  const auto improves = [&](const JobVariants::Levels& there) -> Result<bool> {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(linked.states, there));
    if (variant == nullptr) return false;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> plan,
                    fastest_of_drafts(*variant, {offload, linked.graphs}, limits));
    if (!plan) return false;
    limits.seconds = plan->seconds();
    best = std::move(plan);
    levels = there;
    return true;
  };
  const std::vector<JobVariants::Levels> sizes = variants_.together(linked.decoded);
  NEAP_TRY_ASSIGN(std::size_t size, first_that_may_fit(sizes, linked, offload, limits.capacity));
  for (bool fits = false; !fits && size < sizes.size(); ++size) {
    NEAP_TRY_ASSIGN(fits, improves(sizes[size]));
  }
  if (!best || limits.any) return best;
  const JobVariants::Levels& deepest = variants_.deepest();
  // With one kind, a second round changes nothing.
  for (std::size_t round = 0; round < std::min(variants_.searched(), kRounds); ++round) {
    for (std::size_t kind = 0; kind < variants_.searched(); ++kind) {
      if (linked.decoded == JobVariants::Decoded::kAll && variants_.decodes_fewer(kind)) continue;
      for (const int step : {1, -1}) {
        for (bool better = true; better;) {
          JobVariants::Levels there = levels;
          there[kind] += step;
          if (there[kind] < 0 || there[kind] > deepest[kind]) break;
          NEAP_TRY_ASSIGN(better, improves(there));
        }
      }
    }
  }
  return best;
}

PlanSearch::Found PlanSearch::fastest_of_drafts(Variant& variant, DraftKind kind, Limits limits) {
  std::optional<MemoryPlan> best;
  NEAP_TRY_ASSIGN(std::vector<Draft>* const drafts, drafts_of(variant, kind));
  for (const Draft& draft : *drafts) {
    if (!is_faster(draft.least_seconds, limits.seconds)) continue;
    if (variant.job.residency() == spec::Residency::kAuto && !may_fit(draft.plan, limits.capacity))
      continue;
    MemoryPlan plan = draft.plan;
    plan.capacity = limits.capacity;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found,
                    fastest_of_groups(*variant.drafts, std::move(plan), limits));
    if (!found) continue;
    limits.seconds = found->seconds();
    best = std::move(found);
    if (limits.any) break;
  }
  if (best) {
    best->changes = variant.changes;
    best->variant = variant.choice;
  }
  return best;
}

// Larger groups load less and keep more. Starts from the largest that fit and continues while it
// gets faster. A smaller group waits no less, so a group's operations bound those of the rest.
PlanSearch::Found PlanSearch::fastest_of_groups(Drafts& drafts, MemoryPlan draft, Limits limits) {
  NEAP_TRY_ASSIGN(const double recomputation, drafts.recomputation_seconds(draft));
  std::vector<spec::StepModes> groups = drafts.grouped(draft.modes);
  // Memory grows with the group, and so does the time to count it.
  std::vector<MemoryPlan> fitting;
  fitting.push_back(std::move(draft));
  for (; !groups.empty(); groups.pop_back()) {
    NEAP_TRY_ASSIGN(MemoryPlan plan, drafts.draft(groups.back(), Accuracy::kQuick));
    plan.capacity = limits.capacity;
    if (!may_fit(plan, limits.capacity)) break;
    fitting.push_back(std::move(plan));
  }
  std::optional<MemoryPlan> best;
  for (; !fitting.empty(); fitting.pop_back()) {
    MemoryPlan& plan = fitting.back();
    if (!is_faster(plan.operation_seconds() - recomputation, limits.seconds)) break;
    NEAP_TRY_ASSIGN(const bool found, drafts.solve(plan, limits.seconds * (1 - kSame)));
    if (found) {
      limits.seconds = plan.seconds();
      best = std::move(plan);
    } else if (best) {
      break;
    }
  }
  return best;
}

Result<PlanSearch::Closest> PlanSearch::closest(HostMemory host) {
  Closest best{nullptr, kNoCapacity};
  for (std::size_t states = 0; states < variants_.states(); ++states) {
    for (std::size_t offload = 0; offload < kOffloadSteps; ++offload) {
      NEAP_TRY_ASSIGN(const Closest found, closest(states, offload, host));
      if (found.draft != nullptr && (best.draft == nullptr || found.least < best.least))
        best = found;
    }
  }
  return best;
}

Result<PlanSearch::Closest> PlanSearch::closest(std::size_t states, std::size_t offload,
                                                HostMemory host) {
  const auto key = std::tuple(states, offload, host);
  const auto known = closest_.find(key);
  if (known != closest_.end()) return known->second;
  NEAP_TRY_ASSIGN(const Closest found, find_closest(states, offload, host));
  closest_.emplace(key, found);
  return found;
}

// Among the drafts that a search tries before it gives up: starts with the smallest micro-batches
// and continues up while that lowers the capacity.
Result<PlanSearch::Closest> PlanSearch::find_closest(std::size_t states, std::size_t offload,
                                                     HostMemory host) {
  Closest closest{nullptr, kNoCapacity};
  const std::vector<JobVariants::Levels> all = variants_.together(JobVariants::Decoded::kAny);
  for (auto levels = all.rbegin(); levels != all.rend(); ++levels) {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(states, *levels));
    if (variant == nullptr) continue;
    NEAP_TRY_ASSIGN(std::vector<Draft>* const drafts, drafts_of(*variant, {offload}));
    Closest here{nullptr, closest.least};
    // The last drafts take least, so most others are skipped early. Among equals the first wins.
    for (auto draft = drafts->rbegin(); draft != drafts->rend(); ++draft) {
      if (least_needed(draft->plan) > here.least) continue;
      NEAP_TRY(make_exact(*variant, *draft));
      if (least_needed(draft->plan) > here.least) continue;
      MemoryPlan plan = draft->plan;
      if (host == HostMemory::kUnlimited) plan.host_budget = Bytes();
      const Bytes least = variant->drafts->least_capacity(std::move(plan));
      if (least <= here.least) here = {&draft->plan, least};
    }
    if (closest.draft != nullptr && here.least >= closest.least) break;
    if (here.draft != nullptr) closest = here;
  }
  return closest;
}

Result<Bytes> PlanSearch::least_capacity() {
  NEAP_TRY_ASSIGN(const Closest found, closest(HostMemory::kBudget));
  return found.least;
}

Status PlanSearch::refusal_of(Bytes capacity) {
  NEAP_TRY_ASSIGN(const Closest found, closest(HostMemory::kBudget));
  if (found.draft == nullptr && variants_.has_fixed())
    return {ErrorCode::kDoesNotFit,
            "No plan has the choices that ranks with other stages make of the job and of models "
            "that they share"};
  if (found.draft == nullptr)
    return {ErrorCode::kInvalidArgument, "No setting of the job is valid"};
  NEAP_TRY_ASSIGN(const Closest roomy, closest(HostMemory::kUnlimited));
  return refusal(*found.draft, {capacity, found.least, roomy.least});
}

Result<Bytes> PlanSearch::smaller_capacity(const MemoryPlan& plan) {
  NEAP_TRY_ASSIGN(const Bytes least, least_capacity());
  return std::max(least, share_of(plan.peak, kSmallerShare));
}

PlanSearch::Found PlanSearch::smaller(const MemoryPlan& plan) {
  NEAP_TRY_ASSIGN(const Bytes wanted, smaller_capacity(plan));
  if (wanted > share_of(plan.peak, 1 - kCapacityStep)) return std::optional<MemoryPlan>();
  return fastest_within({wanted});
}

PlanSearch::Found PlanSearch::faster(const MemoryPlan& plan) {
  const double wanted = plan.seconds() * kFasterGain;
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> best, fastest_within({Bytes(), wanted}));
  if (!best) return best;
  Bytes low = plan.peak;
  while (best->peak > low && best->peak - low > share_of(best->peak, kFasterStep)) {
    const Bytes middle = low + (best->peak - low) / 2;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_within({middle, wanted, true}));
    if (found) {
      best = std::move(found);
    } else {
      low = middle;
    }
  }
  if (best->capacity.is_zero()) return best;
  return fastest_within({best->capacity, wanted});
}

}  // namespace neap::plan
