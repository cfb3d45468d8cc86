#include "plan/search/model_choice.h"

#include <algorithm>

namespace neap::plan {
namespace {

spec::Checkpointing kept_by_both(const spec::Checkpointing& a, const spec::Checkpointing& b) {
  spec::Checkpointing out = a;
  for (std::size_t block = 0; block < out.blocks.size(); ++block) {
    for (std::size_t t = 0; t < spec::kSavedTensors; ++t) {
      const auto tensor = static_cast<spec::SavedTensor>(t);
      if (!b.blocks[block].keeps(tensor))
        out.blocks[block].set(tensor, spec::Retention::kRecompute);
    }
  }
  return out;
}

}  // namespace

ModelChoice choice_of(const MemoryPlan& plan, spec::ModelId model, ChoiceParts parts) {
  ModelChoice out{model, plan.modes.of(model)};
  if (!parts.together) out.homes.together = kAnyTogether.together;
  const spec::Checkpointing* const kept = plan.checkpointing(model);
  if (parts.retention && kept != nullptr) out.retention = *kept;
  return out;
}

ModelChoice smaller_of(const ModelChoice& a, const ModelChoice& b) {
  ModelChoice out{a.model};
  for (const auto home : spec::kHomes) out.homes.*home = std::max(a.homes.*home, b.homes.*home);
  out.homes.update = std::max(a.homes.update, b.homes.update);
  out.homes.together = std::min(a.homes.together, b.homes.together);
  if (out.homes.layers == spec::Home::kDisk && out.homes.gradients == spec::Home::kHost)
    out.homes.gradients = spec::Home::kDisk;
  if (a.retention && b.retention) out.retention = kept_by_both(*a.retention, *b.retention);
  return out;
}

VariantChoice smaller_of(const VariantChoice& a, const VariantChoice& b) {
  VariantChoice out = a;
  out.states = std::max(a.states, b.states);
  for (std::size_t kind = 0; kind < out.levels.size(); ++kind)
    out.levels[kind] = std::max(a.levels[kind], b.levels[kind]);
  return out;
}

const ModelChoice* choice_for(const std::vector<ModelChoice>& fixed, spec::ModelId model) {
  const auto found = std::find_if(fixed.begin(), fixed.end(),
                                  [&](const ModelChoice& each) { return each.model == model; });
  return found == fixed.end() ? nullptr : &*found;
}

bool modes_follow(const std::vector<ModelChoice>& fixed, const spec::StepModes& modes) {
  return std::all_of(fixed.begin(), fixed.end(), [&](const ModelChoice& each) {
    spec::ModelHomes chosen = modes.of(each.model);
    chosen.together = each.homes.together;
    return chosen == each.homes;
  });
}

}  // namespace neap::plan
