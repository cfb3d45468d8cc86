#include "spec/recipe/recipe.h"

#include <algorithm>

#include "base/format.h"
#include "spec/recipe/recipe_builder.h"
#include "spec/types/names.h"

namespace neap::spec {
namespace {

constexpr Named<PhaseId> kPhaseNames[] = {
    {"generate", PhaseId::kGenerate},
    {"actor_logp", PhaseId::kActorLogProbs},
    {"ref_logp", PhaseId::kReferenceLogProbs},
    {"values", PhaseId::kValues},
    {"rewards", PhaseId::kRewards},
    {"train_critic", PhaseId::kTrainCritic},
    {"train_actor", PhaseId::kTrainActor},
    {"train", PhaseId::kTrain},
    {"validate", PhaseId::kValidate},
    {"backward_critic", PhaseId::kBackwardCritic},
    {"update_critic", PhaseId::kUpdateCritic},
    {"backward_actor", PhaseId::kBackwardActor},
    {"update_actor", PhaseId::kUpdateActor},
    {"backward", PhaseId::kBackward},
    {"update", PhaseId::kUpdate},
    {"generate_baseline", PhaseId::kGenerateBaseline},
    {"baseline_rewards", PhaseId::kBaselineRewards},
    {"store_weights", PhaseId::kStoreWeights},
    {"wake_up", PhaseId::kWakeUp},
};
static_assert(std::size(kPhaseNames) == kPhases);
constexpr Named<TagKind> kTagNames[] = {
    {"weights", TagKind::kWeights},
    {"prefetch", TagKind::kBuffers},
    {"rollout_weights", TagKind::kBlocks},
    {"adapter", TagKind::kAdapter},
    {"grads", TagKind::kGradients},
    {"unit_grads", TagKind::kUnitGradients},
    {"optimizer", TagKind::kOptimizer},
    {"kv", TagKind::kKeyValues},
    {"graphs", TagKind::kGraphs},
    {"graph_nodes", TagKind::kGraphNodes},
    {"nccl", TagKind::kPeers},
};
static_assert(std::size(kTagNames) == kTagKinds);

bool contains(const std::vector<TagId>& tags, TagId tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// Settings of a trained model that the actor's keys provide.
ModelSource trained_actor(const Job& job, ModelId id, Head head) {
  return {.id = id,
          .path = job.actor_model.path,
          .head = head,
          .trained = &job.actor_model,
          .optimizer = &job.actor.optim,
          .grad_clip = job.actor.grad_clip};
}

// Runs every test_freq steps. It is planned even without test_freq, because the last step may
// validate.
void validation(RecipeBuilder& b, const Job& job, Body body, ModelId model) {
  const bool repeats = job.trainer.test_freq > 0 && !job.data.val_files.empty();
  b.phase(PhaseId::kValidate, body, model).share =
      repeats ? 1 / static_cast<double>(job.trainer.test_freq) : 0;
}

void supervised(RecipeBuilder& b, const Job& job) {
  b.trained(trained_actor(job, ModelId::kActor, Head::kLanguageModel));
  b.update(PhaseId::kTrain, Body::kCrossEntropyUpdate, ModelId::kActor);
  validation(b, job, Body::kCrossEntropy, ModelId::kActor);
}

void reward_model(RecipeBuilder& b, const Job& job) {
  ModelSource reward = trained_actor(job, ModelId::kReward, Head::kScalar);
  reward.init_head = true;
  b.trained(reward);
  b.update(PhaseId::kTrain, Body::kPairUpdate, ModelId::kReward);
  validation(b, job, Body::kPairScores, ModelId::kReward);
}

// A frozen reference and its log-probabilities. It shares the actor's base if that is the same
// model.
void reference_model(RecipeBuilder& b, const Job& job) {
  if (job.uses_reference() && !job.reference_is_actor_base())
    b.frozen(ModelId::kReference, job.reference_path(), Head::kLanguageModel);
}
void reference_log_probs(RecipeBuilder& b, const Job& job) {
  if (!job.uses_reference()) return;
  const bool base = job.reference_is_actor_base();
  Phase& p = b.phase(PhaseId::kReferenceLogProbs, Body::kLogProbs,
                     base ? ModelId::kActor : ModelId::kReference);
  p.adapter_off = base;
  if (job.precomputes_reference()) p.times = 0;
}

// DPO.
void preferences(RecipeBuilder& b, const Job& job) {
  b.trained(trained_actor(job, ModelId::kActor, Head::kLanguageModel));
  reference_model(b, job);
  if (!job.precomputes_reference()) reference_log_probs(b, job);
  b.update(PhaseId::kTrain, Body::kPreferenceUpdate, ModelId::kActor);
  validation(b, job, Body::kCrossEntropy, ModelId::kActor);
  if (job.precomputes_reference()) reference_log_probs(b, job);
}

// The phases that make experience: responses with log-probabilities, values and scores.
void experience(RecipeBuilder& b, const Job& job, bool critic) {
  if (job.copies_rollout_weights()) {
    if (job.rollout.colocation == Colocation::kReload)
      b.phase(PhaseId::kStoreWeights, Body::kRolloutWeights, ModelId::kActor).stores_weights = true;
    b.phase(PhaseId::kWakeUp, Body::kRolloutWeights, ModelId::kActor).loads_weights =
        job.rollout.colocation == Colocation::kReload;
  }
  b.phase(PhaseId::kGenerate, Body::kGenerate, ModelId::kActor);
  // Dynamic sampling repeats generation and rewards (or the KL terms) until the batch is full.
  const bool filter = job.algorithm.filter_groups.enable;
  if (filter && job.has_reward_model())
    b.phase(PhaseId::kRewards, Body::kSequenceScores, ModelId::kReward);
  const bool baseline = job.has_greedy_baseline();
  const auto generate_baseline = [&] {
    if (baseline)
      b.phase(PhaseId::kGenerateBaseline, Body::kGenerate, ModelId::kActor).baseline = true;
  };
  if (!job.filters_by_kl()) generate_baseline();
  if (job.computes_old_log_probs())
    b.phase(PhaseId::kActorLogProbs, Body::kLogProbs, ModelId::kActor).entropy = true;
  reference_log_probs(b, job);
  if (job.filters_by_kl()) generate_baseline();
  if (critic) b.phase(PhaseId::kValues, Body::kTokenScores, ModelId::kCritic);
  if (job.has_reward_model()) {
    if (!filter) b.phase(PhaseId::kRewards, Body::kSequenceScores, ModelId::kReward);
    if (baseline)
      b.phase(PhaseId::kBaselineRewards, Body::kSequenceScores, ModelId::kReward).baseline = true;
  }
}

// PPO with a critic; GRPO and similar algorithms without one.
void policy_gradient(RecipeBuilder& b, const Job& job, bool critic) {
  const bool generates = job.generates();
  b.trained(trained_actor(job, ModelId::kActor, Head::kLanguageModel));
  if (generates) {
    b.key_values();
    reference_model(b, job);
  }
  if (critic)
    b.trained({.id = ModelId::kCritic,
               .path = job.critic_path(),
               .head = Head::kScalar,
               .trained = &job.critic.model,
               .optimizer = &job.critic.optim,
               .grad_clip = job.critic.grad_clip,
               .init_head = job.starts_critic_head()});
  if (generates) {
    if (job.has_reward_model()) b.frozen(ModelId::kReward, job.reward_model.path, Head::kScalar);
    experience(b, job, critic);
  }
  if (critic) b.update(PhaseId::kTrainCritic, Body::kValueUpdate, ModelId::kCritic);
  b.update(PhaseId::kTrainActor, Body::kPolicyUpdate, ModelId::kActor);
}

// Responses to held-out prompts and, with a reward model, their scores.
void evaluation(RecipeBuilder& b, const Job& job) {
  b.frozen(ModelId::kActor, job.actor_model.path, Head::kLanguageModel,
           job.actor_model.lora_adapter_path);
  b.key_values();
  if (job.has_reward_model()) b.frozen(ModelId::kReward, job.reward_model.path, Head::kScalar);
  b.phase(PhaseId::kGenerate, Body::kGenerate, ModelId::kActor);
  if (job.has_reward_model()) b.phase(PhaseId::kRewards, Body::kSequenceScores, ModelId::kReward);
}

}  // namespace

std::string_view to_string(PhaseId phase) {
  return name_of(kPhaseNames, phase);
}

std::string to_string(TagId tag) {
  std::string_view owner = to_string(tag.model);
  if (tag.kind == TagKind::kKeyValues || tag.kind == TagKind::kGraphs ||
      tag.kind == TagKind::kGraphNodes)
    owner = "rollout";
  if (tag.kind == TagKind::kPeers) owner = "ranks";
  return format("{}.{}", owner, name_of(kTagNames, tag.kind));
}

const ModelSource* Recipe::find(ModelId model) const {
  const auto it = std::find_if(models.begin(), models.end(),
                               [&](const ModelSource& m) { return m.id == model; });
  return it == models.end() ? nullptr : &*it;
}

const Phase* Recipe::find(PhaseId phase) const {
  const auto it =
      std::find_if(phases.begin(), phases.end(), [&](const Phase& p) { return p.id == phase; });
  return it == phases.end() ? nullptr : &*it;
}

const Phase* Recipe::find(Body body, std::optional<TrainPart> part) const {
  const auto it = std::find_if(phases.begin(), phases.end(), [&](const Phase& p) {
    return p.body == body && p.part == part.value_or(p.part);
  });
  return it == phases.end() ? nullptr : &*it;
}

const Phase* Recipe::training_phase(ModelId model) const {
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const Phase& phase) {
    return phase.model == model && phase.runs_backward();
  });
  return found == phases.end() ? nullptr : &*found;
}

bool Recipe::stores_weights(ModelId model) const {
  return std::any_of(phases.begin(), phases.end(),
                     [&](const Phase& p) { return p.model == model && p.stores_weights; });
}

bool Recipe::generates(ModelId model) const {
  return std::any_of(phases.begin(), phases.end(),
                     [&](const Phase& p) { return p.model == model && p.body == Body::kGenerate; });
}

bool Recipe::frozen(TagId tag) const {
  return std::none_of(phases.begin(), phases.end(),
                      [&](const Phase& p) { return contains(p.writes, tag); });
}

std::vector<ModelId> Recipe::trained() const {
  std::vector<ModelId> out;
  for (const ModelSource& model : models)
    if (model.trained != nullptr) out.push_back(model.id);
  return out;
}

std::vector<ModelId> streamable(const Recipe& recipe) {
  std::vector<ModelId> out;
  for (const ModelSource& model : recipe.models) {
    const auto can_stream = [&](const Phase& p) {
      return p.model == model.id && !p.runs_once() && !p.is_of_rollout();
    };
    if (std::any_of(recipe.phases.begin(), recipe.phases.end(), can_stream))
      out.push_back(model.id);
  }
  return out;
}

Recipe describe(const Job& job, const StepModes& modes) {
  RecipeBuilder builder(job, modes);
  switch (job.task) {
    case Task::kSft:
      supervised(builder, job);
      break;
    case Task::kReward:
      reward_model(builder, job);
      break;
    case Task::kDpo:
      preferences(builder, job);
      break;
    case Task::kPpo:
    case Task::kGrpo:
      policy_gradient(builder, job, job.task == Task::kPpo);
      break;
    case Task::kEval:
      evaluation(builder, job);
      break;
  }
  return builder.take();
}

}  // namespace neap::spec
