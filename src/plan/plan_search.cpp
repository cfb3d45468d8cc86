#include "plan/plan_search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/format.h"
#include "plan/phase_schedule.h"

namespace neap::plan {
namespace {

constexpr double kInexactGain = 0.95;  // of the seconds of exact plans
constexpr double kFasterGain = 0.95;
constexpr double kSmallerShare = 0.9;
constexpr double kCapacityStep = 0.02;  // least difference of two plans' memory
constexpr double kFasterStep = 0.04;    // accuracy of the memory that a faster plan needs
// Sums of the same seconds in another order.
constexpr double kSame = 1e-9;

namespace fields = spec::job_fields;

bool valid_with(spec::Job job, const std::vector<spec::JobChange>& changes) {
  spec::apply(changes, job);
  return job.validate().ok();
}

void add(std::vector<spec::JobChange>& changes, const std::vector<spec::JobChange>& more) {
  changes.insert(changes.end(), more.begin(), more.end());
}

bool is_faster(double seconds, double limit) {
  return seconds < limit * (1 - kSame);
}

Bytes share_of(Bytes bytes, double share) {
  return Bytes(static_cast<std::uint64_t>(static_cast<double>(bytes.count()) * share));
}

}  // namespace

Result<PlanSearch> PlanSearch::make(const spec::Job& job, const Target& target, Scope scope) {
  PlanSearch search(job, target);
  if (scope == Scope::kWide) {
    search.open_settings();
    search.micro_batches_ = {training_micro_batches(), inference_micro_batches(),
                             rollout_batches()};
  } else if (job.memory.allows(spec::Measure::kMicroBatch)) {
    search.micro_batches_ = {training_micro_batches()};
  }
  for (const Tunable& tunable : search.micro_batches_) {
    int level = 0;
    for (;; ++level) {
      const std::vector<spec::JobChange> smaller = tunable.changes(job, level + 1);
      if (smaller.empty() || !valid_with(job, smaller)) break;
    }
    search.deepest_.push_back(level);
  }
  NEAP_TRY_ASSIGN(search.models_, Drafts::read(search.job_, target));
  search.add_states();
  return search;
}

// What --fit leaves to the plan, whatever the file says.
void PlanSearch::open_settings() {
  if (job_.memory.residency != "auto") opened_.residency = {{fields::kResidency, "auto"}};
  if (!job_.memory.update.automatic) opened_.update = {{fields::kUpdate, spec::UpdateChoice()}};
  for (const spec::ModelId id : trained_) {
    std::vector<spec::JobChange>& changes = opened_.retention.emplace_back();
    const spec::CheckpointMode mode = configured_mode(id);
    if (!job_.memory.allows(spec::Measure::kRecompute) || mode == spec::CheckpointMode::kAuto)
      continue;
    const spec::JobField<bool> other_key = fields::gradient_checkpointing(id);
    if (other_key.of(job_)) changes.emplace_back(other_key, false);
    changes.emplace_back(fields::activation_checkpointing(id), spec::CheckpointMode::kAuto);
  }
  spec::apply(opened_.residency, job_);
  spec::apply(opened_.update, job_);
  for (const std::vector<spec::JobChange>& changes : opened_.retention) spec::apply(changes, job_);
}

spec::CheckpointMode PlanSearch::configured_mode(spec::ModelId trained) const {
  return spec::describe(configured_).find(trained)->trained->checkpoint_mode();
}

// As configured, and narrower wherever they can be.
void PlanSearch::add_states() {
  states_.emplace_back();
  if (!job_.memory.allows(spec::Measure::kBf16States)) return;
  States narrow;
  for (const spec::ModelId id : trained_) {
    const spec::JobField<spec::Dtype> dtype = fields::state_dtype(id);
    const spec::JobChange change(dtype, spec::Dtype::kBfloat16);
    if (dtype.of(job_) != spec::Dtype::kBfloat16 && valid_with(job_, {change}))
      narrow.changes.push_back(change);
  }
  if (!narrow.exact()) states_.push_back(std::move(narrow));
}

// Null where the keys contradict each other.
Result<PlanSearch::Variant*> PlanSearch::variant(std::size_t states, const Levels& levels) {
  const auto [it, is_new] = variants_.try_emplace({states, levels});
  Variant& made = it->second;
  const auto none = static_cast<Variant*>(nullptr);
  if (!is_new) return made.drafts ? &made : none;
  made.job = job_;
  for (std::size_t g = 0; g < levels.size(); ++g) {
    if (levels[g] > 0) add(made.changes, micro_batches_[g].changes(job_, levels[g]));
  }
  add(made.changes, states_[states].changes);
  spec::apply(made.changes, made.job);
  if (!made.changes.empty() && !made.job.validate().ok()) return none;
  JobModels models = models_;
  for (const spec::ModelSource& source : spec::describe(made.job).models) {
    if (source.trained != nullptr) models.slot(source.id)->optimizer = *source.optimizer;
  }
  made.drafts = std::make_unique<Drafts>(made.job, target_, std::move(models), *predictions_);
  return &made;
}

Result<const std::vector<PlanSearch::Variant::Draft>*> PlanSearch::drafts_of(Variant& variant,
                                                                             bool streamed) {
  std::optional<std::vector<Variant::Draft>>& made = streamed ? variant.streamed : variant.resident;
  if (!made) {
    std::vector<Variant::Draft> drafts;
    for (const spec::ModelModes& modes : variant.drafts->modes(streamed)) {
      NEAP_TRY_ASSIGN(MemoryPlan draft, variant.drafts->draft(modes));
      NEAP_TRY_ASSIGN(const double least, variant.drafts->least_seconds(draft));
      drafts.push_back({std::move(draft), least});
    }
    made = std::move(drafts);
  }
  return &*made;
}

// Of one variant, over the ways to divide the updates; nullopt: nothing fits in less than `limit`.
Result<std::optional<MemoryPlan>> PlanSearch::fastest_of(Variant& variant, Bytes capacity,
                                                         double limit, bool streamed) {
  std::optional<MemoryPlan> best;
  NEAP_TRY_ASSIGN(const std::vector<Variant::Draft>* const drafts, drafts_of(variant, streamed));
  for (const Variant::Draft& draft : *drafts) {
    if (!is_faster(draft.least_seconds, limit)) continue;
    MemoryPlan plan = draft.plan;
    Drafts::set_capacity(plan, capacity);
    if (least_needed(plan) > capacity && !capacity.is_zero() &&
        variant.job.memory.residency == "auto")
      continue;
    NEAP_TRY_ASSIGN(const bool found, variant.drafts->solve(plan, limit * (1 - kSame)));
    if (!found) continue;
    limit = plan.seconds();
    best = std::move(plan);
  }
  if (best) best->changes = variant.changes;
  return best;
}

// The sizes of micro-batches as far as each kind goes down, all kinds by the same number of levels.
std::vector<PlanSearch::Levels> PlanSearch::together() const {
  std::vector<Levels> all;
  const int deepest = deepest_.empty() ? 0 : *std::max_element(deepest_.begin(), deepest_.end());
  for (int level = 0; level <= deepest; ++level) {
    all.emplace_back();
    for (const int most : deepest_) all.back().push_back(std::min(level, most));
  }
  return all;
}

// Weights are streamed where nothing fits otherwise.
Result<std::optional<MemoryPlan>> PlanSearch::fastest_of(std::size_t states, Bytes capacity,
                                                         double limit) {
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> resident, fastest_of(states, capacity, limit, false));
  if (resident || capacity.is_zero()) return resident;
  NEAP_TRY_ASSIGN(const Bytes least, resident_capacity(states));
  if (capacity >= least) return resident;
  return fastest_of(states, capacity, limit, true);
}

// Of some optimizer states, over the sizes of micro-batches.
Result<std::optional<MemoryPlan>> PlanSearch::fastest_of(std::size_t states, Bytes capacity,
                                                         double limit, bool streamed) {
  std::optional<MemoryPlan> best;
  Levels levels;
  const auto try_levels = [&](const Levels& there) -> Result<bool> {
    NEAP_TRY_ASSIGN(Variant* const found, variant(states, there));
    if (found == nullptr) return false;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> plan, fastest_of(*found, capacity, limit, streamed));
    if (!plan) return false;
    limit = plan->seconds();
    best = std::move(plan);
    levels = there;
    return true;
  };
  // The largest sizes that fit, all kinds together; then each kind by itself.
  for (const Levels& there : together()) {
    NEAP_TRY_ASSIGN(const bool fits, try_levels(there));
    if (fits) break;
  }
  if (!best) return best;
  for (std::size_t round = 0; round < std::min<std::size_t>(levels.size(), 2); ++round) {
    for (std::size_t g = 0; g < levels.size(); ++g) {
      for (const int step : {1, -1}) {
        for (bool better = true; better;) {
          Levels there = levels;
          there[g] += step;
          if (there[g] < 0 || there[g] > deepest_[g]) break;
          NEAP_TRY_ASSIGN(better, try_levels(there));
        }
      }
    }
  }
  return best;
}

Result<MemoryPlan> PlanSearch::fastest(Bytes capacity) {
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> best,
                  fastest_within(capacity, std::numeric_limits<double>::infinity()));
  if (!best && job_.memory.residency == "all") {
    // A run may try; of all plans the one that misses the capacity by least.
    NEAP_TRY_ASSIGN(const Bytes least, least_capacity());
    NEAP_TRY_ASSIGN(best, fastest_within(least, std::numeric_limits<double>::infinity()));
    if (best) best->capacity = capacity;
  }
  if (!best) return refusal_of(capacity);
  // Who leaves is chosen by bytes. Where more has to leave, there may be room to hide more.
  while (best->overlap && best->move_seconds > 0) {
    NEAP_TRY_ASSIGN(const Bytes wanted, smaller_capacity(*best));
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_within(wanted, best->seconds()));
    if (!found) break;
    best = std::move(found);
    best->capacity = capacity;
  }
  return std::move(*best);
}

Result<Bytes> PlanSearch::smaller_capacity(const MemoryPlan& plan) {
  NEAP_TRY_ASSIGN(const Bytes least, least_capacity());
  return std::max(least, share_of(plan.peak, kSmallerShare));
}

// The narrow states first: they bound the search for an exact plan, which wins unless it is slower
// than they are by more than the gain asked for.
Result<std::optional<MemoryPlan>> PlanSearch::fastest_within(Bytes capacity, double limit) {
  std::optional<MemoryPlan> best;
  for (std::size_t states = states_.size(); states-- > 0;) {
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_of(states, capacity, limit));
    if (!found) continue;
    limit = std::min(limit, found->seconds() / kInexactGain);
    best = std::move(found);
  }
  if (best) add_opened(*best);
  return best;
}

// Adds what was left to the plan, but for settings where it chose what is configured.
void PlanSearch::add_opened(MemoryPlan& plan) const {
  std::vector<spec::JobChange> all = opened_.residency;
  const bool same = std::all_of(plan.updated.begin(), plan.updated.end(), [&](const UpdatePlan& u) {
    return u.mode == configured_.memory.update.mode;
  });
  if (!same) add(all, opened_.update);
  for (std::size_t i = 0; i < opened_.retention.size(); ++i) {
    if (opened_.retention[i].empty()) continue;
    ActivationPlan& a = plan.activations[i];
    const spec::CheckpointMode mode = configured_mode(trained_[i]);
    if (a.checkpointing == spec::checkpointing(mode, models_.at(trained_[i]).shape)) {
      a.mode = mode;
    } else {
      add(all, opened_.retention[i]);
    }
  }
  add(all, plan.changes);
  plan.changes = std::move(all);
}

// Of the drafts that a search tries before it gives up, the one of the least capacity that `of` gives:
// from the smallest micro-batches up, as long as that lowers it.
template <class Of>
Result<std::optional<PlanSearch::Closest>> PlanSearch::closest_of(std::size_t states, bool streamed,
                                                                  const Of& of) {
  std::optional<Closest> closest;
  std::vector<Levels> all = together();
  for (auto levels = all.rbegin(); levels != all.rend(); ++levels) {
    NEAP_TRY_ASSIGN(Variant* const found, variant(states, *levels));
    if (found == nullptr) continue;
    NEAP_TRY_ASSIGN(const std::vector<Variant::Draft>* const drafts, drafts_of(*found, streamed));
    const std::optional<Bytes> before =
        closest ? std::optional<Bytes>(closest->least) : std::nullopt;
    Closest here{nullptr, before.value_or(Bytes(~0ull))};
    // The last ones take least, and most others need more before anything is chosen. Of equals the first counts.
    for (auto draft = drafts->rbegin(); draft != drafts->rend(); ++draft) {
      if (least_needed(draft->plan) > here.least) continue;
      const Bytes least = of(*found->drafts, draft->plan);
      if (least <= here.least) here = {&draft->plan, least};
    }
    if (before && here.least >= *before) break;
    if (here.draft != nullptr) closest = here;
  }
  return closest;
}

template <class Of>
Result<std::optional<PlanSearch::Closest>> PlanSearch::closest(const Of& of) {
  std::optional<Closest> best;
  for (std::size_t states = 0; states < states_.size(); ++states) {
    for (const bool streamed : {false, true}) {
      NEAP_TRY_ASSIGN(const std::optional<Closest> found, closest_of(states, streamed, of));
      if (found && (!best || found->least < best->least)) best = found;
    }
  }
  return best;
}

namespace {

Bytes least_of(const Drafts& drafts, const MemoryPlan& draft) {
  return drafts.least_capacity(draft);
}

}  // namespace

Result<std::optional<PlanSearch::Closest>> PlanSearch::closest() {
  return closest(least_of);
}

Result<Bytes> PlanSearch::resident_capacity(std::size_t states) {
  const auto known = least_resident_.find(states);
  if (known != least_resident_.end()) return known->second;
  NEAP_TRY_ASSIGN(const std::optional<Closest> found, closest_of(states, false, least_of));
  return least_resident_[states] = found ? found->least : Bytes(~0ull);
}

Result<Bytes> PlanSearch::least_capacity() {
  if (!least_) {
    NEAP_TRY_ASSIGN(const std::optional<Closest> found, closest());
    least_ = found ? found->least : Bytes(~0ull);
  }
  return *least_;
}

Status PlanSearch::refusal_of(Bytes capacity) {
  NEAP_TRY_ASSIGN(const std::optional<Closest> found, closest());
  if (!found) return {ErrorCode::kInvalidArgument, "No setting of the job is valid"};
  // With all the host memory that a plan wants.
  NEAP_TRY_ASSIGN(const std::optional<Closest> roomy,
                  closest([](const Drafts& drafts, MemoryPlan draft) {
                    draft.host_budget = Bytes();
                    return drafts.least_capacity(std::move(draft));
                  }));
  MemoryPlan shown = *found->draft;
  Drafts::set_capacity(shown, found->least);
  return refusal(shown, {capacity, found->least, roomy->least});
}

Result<std::optional<MemoryPlan>> PlanSearch::smaller(const MemoryPlan& plan) {
  NEAP_TRY_ASSIGN(const Bytes wanted, smaller_capacity(plan));
  if (wanted > share_of(plan.peak, 1 - kCapacityStep)) return std::optional<MemoryPlan>();
  return fastest_within(wanted, std::numeric_limits<double>::infinity());
}

Result<std::optional<MemoryPlan>> PlanSearch::faster(const MemoryPlan& plan) {
  const double wanted = plan.seconds() * kFasterGain;
  NEAP_TRY_ASSIGN(std::optional<MemoryPlan> best, fastest_within(Bytes(), wanted));
  if (!best) return best;
  Bytes low = plan.peak;
  while (best->peak > low && best->peak - low > share_of(best->peak, kFasterStep)) {
    const Bytes middle = low + (best->peak - low) / 2;
    NEAP_TRY_ASSIGN(std::optional<MemoryPlan> found, fastest_within(middle, wanted));
    if (found) {
      best = std::move(found);
    } else {
      low = middle;
    }
  }
  return best;
}

}  // namespace neap::plan
