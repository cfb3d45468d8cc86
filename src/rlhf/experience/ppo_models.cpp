#include "rlhf/experience/ppo_models.h"

#include <utility>

namespace neap::rlhf {

PpoModels::PpoModels(Context& context)
    : context_(context),
      actor_(context.runtime, context.groups, context.worker_spec(spec::ModelId::kActor)) {
  const auto make = [&](std::optional<train::ModelWorker>& worker, spec::ModelId model) {
    if (context.recipe.find(model) != nullptr)
      worker.emplace(context.runtime, context.model_groups.of(model), context.worker_spec(model));
  };
  make(reward_, spec::ModelId::kReward);
  make(reference_, spec::ModelId::kReference);
  make(critic_, spec::ModelId::kCritic);
}

void PpoModels::load() {
  actor_.load();
  if (reward_) reward_->load();
  if (reference_) reference_->load();
  if (critic_) critic_->load();
}

void PpoModels::save(const std::filesystem::path& folder, train::SavedFiles& files) {
  actor_.save(folder / to_string(spec::ModelId::kActor), context_.save_options(), files);
  if (critic_)
    critic_->save(folder / to_string(spec::ModelId::kCritic), context_.save_options(), files);
}

void PpoModels::restore(const std::filesystem::path& folder) {
  if (reward_) reward_->load();
  if (reference_) reference_->load();
  actor_.restore(folder / to_string(spec::ModelId::kActor));
  if (critic_) critic_->restore(folder / to_string(spec::ModelId::kCritic));
}

void PpoModels::add_log_probs(Experience& e, Metrics& metrics) {
  const spec::Job& job = context_.job;
  if (job.bypasses_old_log_probs()) {
    e.old_log_probs = e.rollout_log_probs;
  } else if (job.computes_old_log_probs()) {
    const Stopwatch watch(metrics, "old_log_prob");
    TokenLogProbs actor =
        response_log_probs(context_, actor_.model(), e.sequences, spec::PhaseId::kActorLogProbs);
    e.old_log_probs = std::move(actor.log_probs);
    e.entropy = std::move(actor.entropy);
  }
  if (!job.uses_reference()) return;
  const Stopwatch watch(metrics, "ref");
  ops::Transformer& reference = reference_ ? reference_->model() : actor_.base();
  e.ref_log_probs =
      response_log_probs(context_, reference, e.sequences, spec::PhaseId::kReferenceLogProbs)
          .log_probs;
}

at::Tensor PpoModels::scores(const train::Sequences& sequences, spec::PhaseId phase) {
  return reward_ ? response_scores(context_, *reward_, sequences, phase) : at::Tensor();
}

}  // namespace neap::rlhf
