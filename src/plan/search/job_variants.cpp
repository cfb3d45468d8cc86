#include "plan/search/job_variants.h"

#include <algorithm>

#include "plan/results/kernel_checks.h"
#include "spec/ranks/rank_kinds.h"
#include "step/model/page_table.h"

namespace neap::plan {
namespace {

namespace fields = spec::job_fields;

bool valid_with(spec::Job job, const std::vector<spec::JobChange>& changes) {
  spec::apply(changes, job);
  return job.validate().ok();
}

// Offloading saves less of the operations than this leaves.
constexpr double kOffloadedTime = 0.99;

// Offloading a model's layers or inputs saves little of its operations with the same update, but
// may save waits for other ranks.
void raise_bounds(std::vector<HomeOption>& options) {
  for (HomeOption& each : options) {
    const auto same = std::find_if(options.begin(), options.end(), [&](const HomeOption& other) {
      return is_resident(other.homes) && other.homes.update == each.homes.update;
    });
    if (!each.open && each.seconds > 0 && same != options.end())
      each.seconds = std::max(each.seconds, kOffloadedTime * (same->seconds - same->peers));
  }
}

// Fewer rows may take less memory without pages.
void drop_idle_pages(Variant& variant, const spec::Job& from) {
  if (step::cache_shape(variant.job).paged()) return;
  std::erase_if(variant.changes, [](const spec::JobChange& change) {
    return change.value_of(fields::kCacheTokens) != nullptr;
  });
  variant.job.rollout.max_total_tokens = from.rollout.max_total_tokens;
}

void add(std::vector<spec::JobChange>& changes, const std::vector<spec::JobChange>& more) {
  changes.insert(changes.end(), more.begin(), more.end());
}

}  // namespace

Result<JobVariants> JobVariants::make(const spec::Job& job, const Target& target, Scope scope,
                                      FixedChoices fixed) {
  JobVariants out(job, target, std::move(fixed));
  std::vector<Tunable> kinds;
  if (scope == Scope::kWide) {
    out.open_settings();
    kinds = {training_micro_batches(), inference_micro_batches(), rollout_batches()};
  } else {
    if (job.memory.allows(spec::Measure::kMicroBatch)) kinds.push_back(training_micro_batches());
    if (job.memory.allows(spec::Measure::kRolloutBatch) && !job.trainer.deterministic) {
      out.rollouts_ = kinds.size();
      kinds.push_back(rollout_batches());
    }
  }
  NEAP_TRY_ASSIGN(out.models_, Drafts::read(out.job_, target));
  const bool is_open = job.rollout.automatic_total_tokens && job.rollout.max_total_tokens == 0;
  const bool opens_pages = scope == Scope::kWide || is_open;
  if (opens_pages && no_pages_reason(out.job_, target, out.models_).empty())
    kinds.push_back(cache_pages());
  kinds.push_back(prefill_passes());
  out.add_levels(std::move(kinds));
  out.add_states();
  return out;
}

void JobVariants::open_settings() {
  opened_.residency = free_residency(job_);
  if (!job_.memory.optimizer_offload.automatic)
    opened_.update = {{fields::kUpdate, spec::UpdateChoice()}};
  for (const spec::ModelId id : trained_) {
    std::vector<spec::JobChange>& changes = opened_.retention.emplace_back();
    if (!job_.memory.allows(spec::Measure::kRecompute) ||
        configured_mode(id) == spec::CheckpointMode::kAuto)
      continue;
    // The two keys must not contradict each other.
    const spec::JobField<bool> other_key = fields::gradient_checkpointing(id);
    if (other_key.of(job_)) changes.emplace_back(other_key, false);
    changes.emplace_back(fields::activation_checkpointing(id), spec::CheckpointMode::kAuto);
  }
  spec::apply(opened_.residency, job_);
  spec::apply(opened_.update, job_);
  for (const std::vector<spec::JobChange>& changes : opened_.retention) spec::apply(changes, job_);
}

void JobVariants::add_levels(std::vector<Tunable> kinds) {
  kinds_ = std::move(kinds);
  for (const Tunable& kind : kinds_) {
    int level = 0;
    for (;; ++level) {
      const std::vector<spec::JobChange> smaller = kind.changes(configured_, level + 1);
      if (smaller.empty() || !valid_with(configured_, smaller)) break;
    }
    deepest_.push_back(level);
  }
}

void JobVariants::add_states() {
  states_.emplace_back();
  if (!job_.memory.allows(spec::Measure::kBf16States)) return;
  std::vector<spec::JobChange> narrow;
  for (const spec::ModelId id : trained_) {
    const spec::JobField<spec::Dtype> dtype = fields::state_dtype(id);
    const spec::JobChange change(dtype, spec::Dtype::kBfloat16);
    if (dtype.of(job_) != spec::Dtype::kBfloat16 && valid_with(job_, {change}))
      narrow.push_back(change);
  }
  if (!narrow.empty()) states_.push_back(std::move(narrow));
}

spec::CheckpointMode JobVariants::configured_mode(spec::ModelId trained) const {
  return spec::describe(configured_).find(trained)->trained->checkpoint_mode();
}

bool JobVariants::may_reorder_sums() const {
  return target_->cuda && !job_.trainer.deterministic &&
         spec::rank_kinds(job_.model_meshes()).size() == 1;
}

bool JobVariants::changes_more(const MemoryPlan& plan, const MemoryPlan& other) const {
  return plan.variant.states > other.variant.states ||
         (rollouts_ && plan.variant.levels[*rollouts_] > other.variant.levels[*rollouts_]);
}

std::vector<JobVariants::Levels> JobVariants::together(Decoded decoded) const {
  if (fixed_.variant) return {fixed_.variant->levels};
  Levels most(deepest_.begin(), deepest_.begin() + static_cast<std::ptrdiff_t>(searched()));
  if (rollouts_ && decoded == Decoded::kAll) most[*rollouts_] = 0;
  const int deepest = most.empty() ? 0 : *std::max_element(most.begin(), most.end());
  std::vector<Levels> all;
  for (int level = decoded == Decoded::kFewer ? 1 : 0; level <= deepest; ++level) {
    Levels& levels = all.emplace_back(deepest_.size());
    for (std::size_t kind = 0; kind < most.size(); ++kind)
      levels[kind] = std::min(level, most[kind]);
  }
  return all;
}

Result<Variant*> JobVariants::at(std::size_t states, const Levels& levels) {
  const auto [it, is_new] = variants_.try_emplace({states, levels});
  Variant& made = it->second;
  Variant* const none = nullptr;
  if (!is_new) return made.drafts ? &made : none;
  made.choice = {states, levels};
  if (fixed_.variant && *fixed_.variant != made.choice) return none;
  for (std::size_t k = 0; k < levels.size(); ++k) {
    if (levels[k] > 0) add(made.changes, kinds_[k].changes(job_, levels[k]));
  }
  add(made.changes, states_[states]);
  made.job = job_;
  spec::apply(made.changes, made.job);
  drop_idle_pages(made, job_);
  if (!made.changes.empty() && !made.job.validate().ok()) return none;
  JobModels models = models_;
  for (const spec::ModelSource& source : spec::describe(made.job).models) {
    if (source.trained != nullptr) models.slot(source.id)->optimizer = *source.optimizer;
  }
  made.drafts =
      std::make_unique<Drafts>(made.job, *target_, std::move(models), *predictions_, fixed_.models);
  return &made;
}

Result<std::string_view> JobVariants::no_graphs_reason() {
  NEAP_TRY_ASSIGN(const Variant* const variant, at(0, together(Decoded::kAll).front()));
  return variant == nullptr ? std::string_view("no setting is valid")
                            : variant->drafts->no_graphs_reason();
}

Result<const std::vector<ModelOptions>*> options_of(Variant& variant, DraftKind kind) {
  const auto known = variant.options.find(kind);
  if (known != variant.options.end()) return &known->second;
  NEAP_TRY_ASSIGN(std::vector<ModelOptions> models,
                  variant.drafts->options(kind.offloads, kind.graphs));
  for (ModelOptions& model : models) raise_bounds(model.options);
  return &(variant.options[kind] = std::move(models));
}

Result<Draft*> draft_of(Variant& variant, DraftKind kind, const HomeCombination& homes) {
  NEAP_TRY_ASSIGN(const std::vector<ModelOptions>* const models, options_of(variant, kind));
  spec::StepModes modes{.graphs = kind.graphs};
  std::vector<spec::ModelHomes> key;
  for (std::size_t m = 0; m < models->size(); ++m) {
    key.push_back((*models)[m].options[homes.options[m]].homes);
    modes.of((*models)[m].model) = key.back();
  }
  const auto [it, is_new] = variant.made.try_emplace({kind.graphs, std::move(key)});
  if (is_new) {
    NEAP_TRY_ASSIGN(it->second.plan, variant.drafts->draft(modes, Accuracy::kQuick));
  }
  return &it->second;
}

Status make_exact(Variant& variant, Draft& draft) {
  if (draft.exact) return {};
  NEAP_TRY_ASSIGN(draft.plan, variant.drafts->draft(draft.plan.modes));
  draft.exact = true;
  return {};
}

void JobVariants::add_opened(MemoryPlan& plan) const {
  std::vector<spec::JobChange> all = opened_.residency;
  const bool same = std::all_of(trained_.begin(), trained_.end(), [&](spec::ModelId model) {
    return plan.modes.of(model).update == configured_.memory.optimizer_offload.mode;
  });
  if (!same) add(all, opened_.update);
  for (std::size_t i = 0; i < opened_.retention.size(); ++i) {
    if (opened_.retention[i].empty()) continue;
    ActivationPlan& chosen = plan.activations[i];  // in the same order
    const spec::CheckpointMode mode = configured_mode(trained_[i]);
    if (chosen.checkpointing == spec::checkpointing(mode, models_.at(trained_[i]).shape)) {
      chosen.mode = mode;
    } else {
      add(all, opened_.retention[i]);
    }
  }
  add(all, plan.changes);
  plan.changes = std::move(all);
}

}  // namespace neap::plan
