#include "plan/search/model_choice.h"

#include <algorithm>

namespace neap::plan {
namespace {

ModelChoice choice_of_modes(const spec::ModelModes& modes, spec::ModelId model) {
  return {model,
          modes.of(model),
          modes.streams_weights(model),
          modes.streams_tables(model),
          modes.inputs_on_host(model),
          modes.gradients_on_host(model),
          modes.blocks_on_disk(model)};
}

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
  ModelChoice out = choice_of_modes(plan.modes, model);
  if (parts.together) out.together = plan.modes.together(model);
  const spec::Checkpointing* const kept = plan.checkpointing(model);
  if (parts.retention && kept != nullptr) out.retention = *kept;
  return out;
}

ModelChoice smaller_of(const ModelChoice& a, const ModelChoice& b) {
  ModelChoice out{a.model, std::max(a.update, b.update)};
  for (const auto choice : kWeightChoices) out.*choice = a.*choice || b.*choice;
  // Blocks are on disk because host memory is short, so their inputs do not fit there either.
  if (out.blocks_on_disk) out.inputs_on_host = false;
  if (a.retention && b.retention) out.retention = kept_by_both(*a.retention, *b.retention);
  if (a.together && b.together) out.together = std::min(*a.together, *b.together);
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

bool modes_follow(const std::vector<ModelChoice>& fixed, const spec::ModelModes& modes) {
  return std::all_of(fixed.begin(), fixed.end(), [&](const ModelChoice& each) {
    ModelChoice chosen = choice_of_modes(modes, each.model);
    chosen.retention = each.retention;
    chosen.together = each.together;
    return chosen == each;
  });
}

}  // namespace neap::plan
