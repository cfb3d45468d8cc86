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
    NEAP_TRY_ASSIGN(const Bytes wanted, smaller_capacity(*best));
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_within({wanted, best->seconds()}));
    if (!found) break;
    best = std::move(found);
    best->capacity = capacity;
  }
  NEAP_TRY(refine(*best));
  NEAP_TRY(take_faster_with_graphs(*best));
  return std::move(*best);
}

// The search above does not count the memory of graphs. A plan that needs less memory may have room
// for them, or to hide more copies.
Status PlanSearch::take_faster_with_graphs(MemoryPlan& best) {
  const Bytes capacity = best.capacity;
  while (!best.modes.graphs || best.move_seconds > 0) {
    NEAP_TRY_ASSIGN(const double saved, saved_by_graphs(best));
    if (saved <= 0) break;
    NEAP_TRY_ASSIGN(const Bytes wanted, smaller_capacity(best));
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found,
                    fastest_within({wanted, best.seconds() + saved}));
    if (!found) break;
    NEAP_TRY(refine(*found));
    if (!is_faster(found->seconds(), best.seconds())) break;
    best = *std::move(found);
    best.capacity = capacity;
  }
  return {};
}

Result<bool> PlanSearch::replaced(MemoryPlan& best, const spec::StepModes& modes,
                                  const JobVariants::Levels& levels) {
  NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(best.variant.states, levels));
  if (variant == nullptr) return false;
  NEAP_TRY_ASSIGN(MemoryPlan plan, variant->drafts->draft(modes));
  plan.capacity = best.capacity;
  if (!best.capacity.is_zero() && least_needed(plan) > best.capacity) return false;
  NEAP_TRY_ASSIGN(const bool found, variant->drafts->solve(plan, best.seconds() * kRefinedGain));
  if (!found) return false;
  plan.changes = variant->changes;
  plan.variant = variant->choice;
  plan.no_graphs = best.no_graphs;
  variants_.add_opened(plan);
  best = std::move(plan);
  return true;
}

Status PlanSearch::take_graphs(MemoryPlan& best) {
  NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(best.variant.states, best.variant.levels));
  if (variant == nullptr) return {};
  best.no_graphs = variant->drafts->no_graphs_reason();
  if (!best.no_graphs.empty()) return {};
  spec::StepModes modes = best.modes;
  modes.graphs = true;
  JobVariants::Levels levels = best.variant.levels;
  // Shorter prefill passes leave more memory. Their products may have another order of sums.
  const int deepest =
      variants_.may_reorder_sums() ? variants_.deepest().back() : best.variant.levels.back();
  for (; levels.back() <= deepest; ++levels.back()) {
    NEAP_TRY_ASSIGN(const bool found, replaced(best, modes, levels));
    if (found) return {};
  }
  best.no_graphs = "they do not fit, or are not faster";
  return {};
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

Status PlanSearch::refine(MemoryPlan& best) {
  NEAP_TRY(take_graphs(best));
  return enlarge_logits(best);
}

Result<double> PlanSearch::saved_by_graphs(const MemoryPlan& plan) {
  NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(plan.variant.states, plan.variant.levels));
  if (variant == nullptr || !variant->drafts->no_graphs_reason().empty()) return 0.0;
  const auto seconds = [&](bool graphs) -> Result<double> {
    spec::StepModes modes = plan.modes;
    modes.graphs = graphs;
    NEAP_TRY_ASSIGN(const MemoryPlan draft, variant->drafts->draft(modes));
    return draft.operation_seconds();
  };
  NEAP_TRY_ASSIGN(const double eager, seconds(false));
  NEAP_TRY_ASSIGN(const double in_graphs, seconds(true));
  return eager - in_graphs;
}

// The result with bfloat16 states bounds the search for an exact plan. The exact plan wins unless
// it is slower by more than kInexactGain.
PlanSearch::Found PlanSearch::fastest_within(Limits limits) {
  std::optional<MemoryPlan> best;
  for (std::size_t states = variants_.states(); states-- > 0;) {
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_of_states(states, limits));
    if (!found) continue;
    limits.seconds = std::min(limits.seconds, found->seconds() / kInexactGain);
    best = std::move(found);
  }
  if (best) variants_.add_opened(*best);
  return best;
}

PlanSearch::Found PlanSearch::fastest_of_states(std::size_t states, Limits limits) {
  for (std::size_t offload = 0; offload < kOffloadSteps; ++offload) {
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_of_sizes(states, offload, limits));
    if (found) {
      if (offload > 0) NEAP_TRY(improve(*found, states, offload, limits));
      return found;
    }
    if (limits.capacity.is_zero()) {
      // Fixed choices may leave no drafts.
      NEAP_TRY_ASSIGN(const bool any, has_drafts(states, offload));
      if (any) break;
      continue;
    }
    NEAP_TRY_ASSIGN(const Closest least, closest(states, offload, HostMemory::kBudget));
    if (limits.capacity >= least.least) break;  // some fit, but none is fast enough
  }
  return std::optional<MemoryPlan>();
}

Result<bool> PlanSearch::has_drafts(std::size_t states, std::size_t offload) {
  for (const JobVariants::Levels& levels : variants_.together()) {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(states, levels));
    if (variant == nullptr) continue;
    NEAP_TRY_ASSIGN(const std::vector<Draft>* const drafts, drafts_of(*variant, offload));
    if (!drafts->empty()) return true;
  }
  return false;
}

// With less of a model on the device there is room for larger groups of micro-batches.
Status PlanSearch::improve(MemoryPlan& best, std::size_t states, std::size_t offload,
                           Limits limits) {
  if (limits.capacity.is_zero()) return {};
  for (std::size_t further = offload + 1; further < kOffloadSteps; ++further) {
    limits.seconds = best.seconds();
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> faster, fastest_of_sizes(states, further, limits));
    if (faster) best = std::move(*faster);
  }
  return {};
}

PlanSearch::Found PlanSearch::fastest_of_sizes(std::size_t states, std::size_t offload,
                                               Limits limits) {
  std::optional<MemoryPlan> best;
  JobVariants::Levels levels;  // levels of the best plan
  const auto improves = [&](const JobVariants::Levels& there) -> Result<bool> {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(states, there));
    if (variant == nullptr) return false;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> plan, fastest_of_drafts(*variant, offload, limits));
    if (!plan) return false;
    limits.seconds = plan->seconds();
    best = std::move(plan);
    levels = there;
    return true;
  };
  for (const JobVariants::Levels& there : variants_.together()) {
    NEAP_TRY_ASSIGN(const bool fits, improves(there));
    if (fits) break;
  }
  if (!best) return best;
  const JobVariants::Levels& deepest = variants_.deepest();
  // With one kind, a second round changes nothing.
  for (std::size_t round = 0; round < std::min(variants_.searched(), kRounds); ++round) {
    for (std::size_t kind = 0; kind < variants_.searched(); ++kind) {
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

PlanSearch::Found PlanSearch::fastest_of_drafts(Variant& variant, std::size_t offload,
                                                Limits limits) {
  std::optional<MemoryPlan> best;
  NEAP_TRY_ASSIGN(std::vector<Draft>* const drafts, drafts_of(variant, offload));
  for (const Draft& draft : *drafts) {
    if (!is_faster(draft.least_seconds, limits.seconds)) continue;
    MemoryPlan plan = draft.plan;
    plan.capacity = limits.capacity;
    if (!limits.capacity.is_zero() && least_needed(plan) > limits.capacity &&
        variant.job.residency() == spec::Residency::kAuto)
      continue;
    NEAP_TRY_ASSIGN(const std::optional<MemoryPlan> found,
                    fastest_of_groups(*variant.drafts, std::move(plan), limits));
    if (!found) continue;
    limits.seconds = found->seconds();
    best = found;
  }
  if (best) {
    best->changes = variant.changes;
    best->variant = variant.choice;
  }
  return best;
}

// Larger groups load less and keep more. Starts from the largest that fit and continues while it
// gets faster.
PlanSearch::Found PlanSearch::fastest_of_groups(Drafts& drafts, MemoryPlan draft, Limits limits) {
  std::optional<MemoryPlan> best;
  const std::vector<spec::StepModes> grouped = drafts.grouped(draft.modes);
  const auto faster = [&](MemoryPlan plan) -> Result<bool> {
    NEAP_TRY_ASSIGN(const bool found, drafts.solve(plan, limits.seconds * (1 - kSame)));
    if (!found) return false;
    limits.seconds = plan.seconds();
    best = std::move(plan);
    return true;
  };
  for (const spec::StepModes& modes : grouped) {
    NEAP_TRY_ASSIGN(MemoryPlan plan, drafts.draft(modes));
    plan.capacity = limits.capacity;
    if (!limits.capacity.is_zero() && least_needed(plan) > limits.capacity) continue;
    const bool found_before = best.has_value();
    NEAP_TRY_ASSIGN(const bool found, faster(std::move(plan)));
    if (found_before && !found) return best;
  }
  const Result<bool> single = faster(std::move(draft));
  if (!single.ok()) return single.status();
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
  const std::vector<JobVariants::Levels> all = variants_.together();
  for (auto levels = all.rbegin(); levels != all.rend(); ++levels) {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(states, *levels));
    if (variant == nullptr) continue;
    NEAP_TRY_ASSIGN(std::vector<Draft>* const drafts, drafts_of(*variant, offload));
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
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_within({wanted}));
  if (found) NEAP_TRY(refine(*found));
  return found;
}

PlanSearch::Found PlanSearch::faster(const MemoryPlan& plan) {
  // The search compares plans without graphs; the best one gets graphs afterwards.
  NEAP_TRY_ASSIGN(const double saved,
                  plan.modes.graphs ? saved_by_graphs(plan) : Result<double>(0.0));
  const double wanted = plan.seconds() * kFasterGain + saved;
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> best, fastest_within({Bytes(), wanted}));
  if (!best) return best;
  Bytes low = plan.peak;
  while (best->peak > low && best->peak - low > share_of(best->peak, kFasterStep)) {
    const Bytes middle = low + (best->peak - low) / 2;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_within({middle, wanted}));
    if (found) {
      best = std::move(found);
    } else {
      low = middle;
    }
  }
  NEAP_TRY(refine(*best));
  if (best->seconds() > plan.seconds() * kFasterGain) best.reset();
  return best;
}

}  // namespace neap::plan
