#include "plan/search/plan_search.h"

#include <algorithm>
#include <cmath>
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
// Combinations of homes in a row that are not faster. Estimates with several ranks are worse.
constexpr std::size_t kMostMisses = 8, kMostMissesOfRanks = 64;
constexpr std::size_t kMostFinalists = 4;
constexpr std::size_t kRounds = 2;  // over the kinds of micro-batches

bool is_faster(double seconds, double limit) {
  return seconds < limit * (1 - kSame);
}

// Zero: unlimited.
bool may_fit(const MemoryPlan& plan, Bytes capacity) {
  return capacity.is_zero() || least_needed(plan) <= capacity;
}

bool may_fit(const std::vector<ModelOptions>& models, Bytes capacity) {
  return std::all_of(models.begin(), models.end(), [&](const ModelOptions& model) {
    return std::any_of(model.options.begin(), model.options.end(),
                       [&](const HomeOption& each) { return each.needed <= capacity; });
  });
}

std::size_t changed(const std::array<std::size_t, spec::kModels>& a,
                    const std::array<std::size_t, spec::kModels>& b) {
  std::size_t out = 0;
  for (std::size_t i = 0; i < a.size(); ++i) out += a[i] != b[i];
  return out;
}

bool are_resident(const spec::StepModes& modes) {
  return std::all_of(modes.models.begin(), modes.models.end(), is_resident);
}

// nullopt: some model has no option.
std::optional<double> least_of(const std::vector<ModelOptions>& models) {
  double sum = 0;
  for (const ModelOptions& model : models) {
    if (model.options.empty()) return std::nullopt;
    sum += std::min_element(
               model.options.begin(), model.options.end(),
               [](const HomeOption& a, const HomeOption& b) { return a.seconds < b.seconds; })
               ->seconds;
  }
  return sum;
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
    NEAP_TRY_ASSIGN(const Bytes smaller, smaller_capacity(*best));
    if (smaller >= best->peak) break;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_within({smaller, best->seconds()}));
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
  if (best) limits.seconds = std::min(limits.seconds, best->seconds() * kInexactGain);
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
    NEAP_TRY_ASSIGN(best, fastest_of_homes(linked, limits));
  }
  if (best && limits.any) return best;
  if (best) limits.seconds = best->seconds();
  linked.graphs = false;
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> eager, fastest_of_homes(linked, limits));
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

PlanSearch::Found PlanSearch::fastest_of_homes(Linked linked, Limits limits) {
  std::optional<MemoryPlan> best;
  for (const bool offloads : {false, true}) {
    linked.offloads = offloads;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_of_sizes(linked, limits));
    if (found && limits.any) return found;
    if (found) {
      NEAP_TRY_ASSIGN(const double saved, refine(linked, *found));
      if (!best || is_faster(found->seconds(), best->seconds() * kOffloadGain))
        best = std::move(found);
      // A slower plan may have room for larger chunks.
      limits.margin = saved;
      limits.seconds = std::min(limits.seconds, best->seconds() * kOffloadGain + saved);
    }
    // With less of a model on the device there is room for larger groups of micro-batches, and for
    // more that need not be recomputed. Nothing is faster than a plan without either.
    if (offloads) break;
    NEAP_TRY_ASSIGN(const std::optional<double> bound, least_seconds(linked));
    if (bound && (limits.capacity.is_zero() || !is_faster(*bound, limits.seconds + limits.margin)))
      break;
  }
  return best;
}

Result<double> PlanSearch::refine(Linked linked, MemoryPlan& best) {
  NEAP_TRY_ASSIGN(double saved, saved_by_logits(best));
  const double before = best.seconds();
  std::vector<MemoryPlan> all = std::exchange(finalists_, {});
  std::stable_sort(all.begin(), all.end(), [](const MemoryPlan& a, const MemoryPlan& b) {
    return a.seconds() < b.seconds();
  });
  all.insert(all.begin(), best);
  std::vector<std::array<spec::ModelHomes, spec::kModels>> seen;
  for (MemoryPlan& plan : all) {
    const auto homes = plan.modes.models;
    if (plan.seconds() > before + saved || seen.size() == kMostFinalists) break;
    if (std::find(seen.begin(), seen.end(), homes) != seen.end()) continue;
    seen.push_back(homes);
    NEAP_TRY(enlarge_logits(plan));
    // With more on the device there may be no room for graphs.
    const double eager = plan.seconds();
    if (!linked.graphs) NEAP_TRY(shorten_prefill(plan));
    if (seen.size() == 1) saved += eager - plan.seconds();
    if (is_faster(plan.seconds(), best.seconds())) best = std::move(plan);
  }
  return saved;
}

Result<std::optional<double>> PlanSearch::least_seconds(Linked linked) {
  for (const JobVariants::Levels& levels : variants_.together(linked.decoded)) {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(linked.states, levels));
    if (variant == nullptr) continue;
    NEAP_TRY_ASSIGN(const std::vector<ModelOptions>* const models,
                    options_of(*variant, kind_of(linked)));
    return least_of(*models);
  }
  return std::optional<double>();
}

// Smaller sizes need less memory.
Result<std::size_t> PlanSearch::first_that_may_fit(const std::vector<JobVariants::Levels>& sizes,
                                                   Linked linked, Bytes capacity) {
  std::size_t low = 0, high = sizes.size();
  if (capacity.is_zero() || variants_.job().residency() != spec::Residency::kAuto) return low;
  while (low < high) {
    // The smallest first: often no size fits.
    const std::size_t middle = high == sizes.size() ? high - 1 : low + (high - low) / 2;
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(linked.states, sizes[middle]));
    if (variant == nullptr) return std::size_t{0};
    NEAP_TRY_ASSIGN(const std::vector<ModelOptions>* const models,
                    options_of(*variant, kind_of(linked)));
    if (may_fit(*models, capacity)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

PlanSearch::Found PlanSearch::fastest_of_sizes(Linked linked, Limits limits) {
  std::optional<MemoryPlan> best;
  finalists_.clear();
  JobVariants::Levels levels;  // levels of the best plan
  const auto improves = [&](const JobVariants::Levels& there) -> Result<bool> {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(linked.states, there));
    if (variant == nullptr) return false;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> plan,
                    fastest_of_drafts(*variant, kind_of(linked), limits));
    if (!plan) return false;
    limits.seconds = plan->seconds();
    best = std::move(plan);
    levels = there;
    return true;
  };
  const std::vector<JobVariants::Levels> sizes = variants_.together(linked.decoded);
  NEAP_TRY_ASSIGN(std::size_t size, first_that_may_fit(sizes, linked, limits.capacity));
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
  NEAP_TRY_ASSIGN(const std::vector<ModelOptions>* const models, options_of(variant, kind));
  const bool moves = variant.job.residency() == spec::Residency::kAuto;
  const HomeLimits home_limits{moves ? limits.capacity : Bytes(), variants_.host_limit(),
                               limits.seconds + limits.margin, variants_.bytes_per_second()};
  std::vector<HomeCombination> all = combinations(*models, home_limits);
  std::optional<HomeCombination> from;  // of the best plan
  const std::size_t most = variant.job.ranks() > 1 ? kMostMissesOfRanks : kMostMisses;
  std::size_t misses = 0;
  // Returns whether to continue.
  const auto improves = [&](const HomeCombination& homes) -> Result<bool> {
    if (!is_faster(homes.seconds, limits.seconds + limits.margin)) return false;
    NEAP_TRY_ASSIGN(const Draft* const draft, draft_of(variant, kind, homes));
    if (kind.offloads && are_resident(draft->plan.modes)) return false;
    if (moves && !may_fit(draft->plan, limits.capacity)) return false;
    MemoryPlan plan = draft->plan;
    plan.capacity = limits.capacity;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found,
                    fastest_of_groups(*variant.drafts, std::move(plan), limits));
    if (found) {
      found->changes = variant.changes;
      found->variant = variant.choice;
    }
    if (!found || !is_faster(found->seconds(), limits.seconds)) {
      if (found) finalists_.push_back(std::move(*found));
      if (std::isfinite(limits.seconds)) ++misses;
      return false;
    }
    misses = 0;
    limits.seconds = found->seconds();
    if (best) finalists_.push_back(std::move(*best));
    best = std::move(found);
    from = homes;
    return true;
  };
  std::vector<HomeCombination> rest;
  for (const HomeCombination& homes : all) {
    if (misses == most) {
      rest.push_back(homes);
      continue;
    }
    NEAP_TRY_ASSIGN(const bool better, improves(homes));
    if (better && limits.any) return best;
  }
  // Homes of one model may be better with the homes that the best plan has for the others.
  for (bool better = best.has_value(); better;) {
    better = false;
    misses = 0;
    for (auto each = rest.begin(); each != rest.end() && !better && misses < most;) {
      if (changed(each->options, from->options) != 1) {
        ++each;
        continue;
      }
      const HomeCombination homes = *each;
      each = rest.erase(each);
      NEAP_TRY_ASSIGN(better, improves(homes));
    }
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
  double limit = limits.seconds + limits.margin;
  for (; !fitting.empty(); fitting.pop_back()) {
    MemoryPlan& plan = fitting.back();
    if (!is_faster(plan.operation_seconds() - recomputation, limit)) break;
    NEAP_TRY_ASSIGN(const bool found, drafts.solve(plan, limit * (1 - kSame)));
    if (found) {
      limit = plan.seconds();
      best = std::move(plan);
    } else if (is_faster(limit, limits.seconds)) {
      break;
    }
  }
  return best;
}

Result<PlanSearch::Closest> PlanSearch::closest(HostMemory host) {
  Closest best{nullptr, kNoCapacity};
  for (std::size_t states = 0; states < variants_.states(); ++states) {
    NEAP_TRY_ASSIGN(const Closest found, closest(states, host));
    if (found.draft != nullptr && (best.draft == nullptr || found.least < best.least)) best = found;
  }
  return best;
}

Result<PlanSearch::Closest> PlanSearch::closest(std::size_t states, HostMemory host) {
  const auto known = closest_.find({states, host});
  if (known != closest_.end()) return known->second;
  NEAP_TRY_ASSIGN(const Closest found, find_closest(states, host));
  closest_.emplace(std::pair(states, host), found);
  return found;
}

// Starts with the smallest micro-batches and continues up while that lowers the capacity.
Result<PlanSearch::Closest> PlanSearch::find_closest(std::size_t states, HostMemory host) {
  Closest closest{nullptr, kNoCapacity};
  const std::vector<JobVariants::Levels> all = variants_.together(JobVariants::Decoded::kAny);
  for (auto levels = all.rbegin(); levels != all.rend(); ++levels) {
    NEAP_TRY_ASSIGN(Variant* const variant, variants_.at(states, *levels));
    if (variant == nullptr) continue;
    NEAP_TRY_ASSIGN(const Closest here, closest_of(*variant, host, closest.least));
    if (closest.draft != nullptr && here.least >= closest.least) break;
    if (here.draft != nullptr) closest = here;
  }
  return closest;
}

// Combinations with the lowest bound of memory come first.
Result<PlanSearch::Closest> PlanSearch::closest_of(Variant& variant, HostMemory host, Bytes most) {
  Closest closest{nullptr, most};
  for (const bool offloads : {false, true}) {
    const DraftKind kind{offloads};
    NEAP_TRY_ASSIGN(const std::vector<ModelOptions>* const models, options_of(variant, kind));
    std::vector<HomeCombination> all = combinations(*models, {});
    std::stable_sort(
        all.begin(), all.end(),
        [](const HomeCombination& a, const HomeCombination& b) { return a.needed < b.needed; });
    for (const HomeCombination& homes : all) {
      const bool any = closest.draft != nullptr;
      if (any ? homes.needed >= closest.least : homes.needed > closest.least) break;
      NEAP_TRY_ASSIGN(Draft* const draft, draft_of(variant, kind, homes));
      NEAP_TRY(make_exact(variant, *draft));
      MemoryPlan plan = draft->plan;
      if (host == HostMemory::kUnlimited) plan.host_budget = Bytes();
      const Bytes least = variant.drafts->least_capacity(std::move(plan));
      if (!any || least < closest.least) closest = {&draft->plan, least};
    }
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
