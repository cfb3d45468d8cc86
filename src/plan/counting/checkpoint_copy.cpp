#include "plan/counting/checkpoint_copy.h"

namespace neap::plan {
namespace {

Bytes sum_of(const std::vector<PartPlan>& parts) {
  Bytes sum;
  for (const PartPlan& part : parts) sum += part.bytes;
  return sum;
}

bool saves_while_training(const spec::TrainerConfig& trainer) {
  const bool between = trainer.save_freq > 0 && (trainer.total_training_steps == 0 ||
                                                 trainer.save_freq < trainer.total_training_steps);
  return between || !trainer.best_metric.empty();
}

}  // namespace

Bytes checkpoint_copy(const spec::Job& job, const spec::Recipe& recipe,
                      const std::vector<TagPlan>& tags) {
  Bytes sum;
  if (!job.trainer.async_save || job.ranks() > 1 || !saves_while_training(job.trainer)) return sum;
  for (const TagPlan& tag : tags) {
    const spec::ModelSource* const model = recipe.find(tag.id.model);
    if (tag.is_outside() || model == nullptr || model->trained == nullptr) continue;
    const bool saves_base = model->trained->lora.rank == 0 || job.trainer.save_lora_base;
    const HostedPlan& hosted = tag.hosted;
    sum += sum_of(hosted.states);
    if (saves_base) sum += sum_of(hosted.blocks) + sum_of(hosted.tables) + hosted.slice;
    // With offloaded states, the tag has prefetch buffers.
    const bool states = tag.id.kind == spec::TagKind::kOptimizer && hosted.states.empty();
    const bool weights = tag.id.kind == spec::TagKind::kWeights && saves_base;
    if (states || weights || tag.id.kind == spec::TagKind::kAdapter) sum += tag.bytes;
  }
  return sum;
}

}  // namespace neap::plan
