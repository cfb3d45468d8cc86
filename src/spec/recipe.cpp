#include "spec/recipe.h"

#include <algorithm>

#include "base/format.h"

namespace neap::spec {
namespace {

// Indexed by the enums.
constexpr std::array<std::string_view, 4> kTaskNames = {"sft", "reward", "ppo", "grpo"};
constexpr std::array<std::string_view, 4> kModelNames = {"actor", "reference", "critic", "reward"};
constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "generate",     "actor_logp",  "ref_logp", "values",  "rewards",
    "train_critic", "train_actor", "train",    "validate"};
constexpr std::array<std::string_view, 5> kTagNames = {"weights", "adapter", "grads", "optimizer",
                                                       "kv"};

template <class Enum, std::size_t N>
constexpr std::string_view name_of(const std::array<std::string_view, N>& names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

bool contains(const std::vector<TagId>& tags, TagId tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// Adds models with their tags, then phases, whose tags follow from what they do with their model.
class Builder {
 public:
  explicit Builder(Task task) { recipe_.task = task; }

  void frozen(ModelId id, const std::string& path, Head head) { add_model({id, path, head}); }
  void trained(ModelId id, const std::string& path, Head head, const ModelConfig& model,
               const OptimizerConfig& optimizer) {
    add_model({id, path, head, &model, &optimizer});
    add_tag(TagKind::kGradients, id);
    add_tag(TagKind::kOptimizer, id);
  }
  void key_values() { add_tag(TagKind::kKeyValues, ModelId::kActor); }

  Phase& phase(PhaseId id, Body body, ModelId model) {
    Phase& p = recipe_.phases.emplace_back();
    p.id = id;
    p.body = body;
    p.model = model;
    return p;
  }
  void update(PhaseId id, Body body, ModelId model) { phase(id, body, model).updates = true; }

  [[nodiscard]] Recipe take() {
    for (Phase& p : recipe_.phases) fill_tags(p);
    return std::move(recipe_);
  }

 private:
  void add_model(const ModelSource& source) {
    recipe_.models.push_back(source);
    add_tag(TagKind::kWeights, source.id);
    if (source.adapted()) add_tag(TagKind::kAdapter, source.id);
  }
  void add_tag(TagKind kind, ModelId model) { recipe_.tags.push_back({kind, model}); }

  // The tags that the job has, in their order.
  void fill_tags(Phase& p) const {
    const bool adapted = recipe_.find(p.model)->adapted();
    for (const TagId tag : recipe_.tags) {
      const bool own = tag.model == p.model;
      const bool trained = tag.kind == TagKind::kGradients || tag.kind == TagKind::kOptimizer;
      if (tag.kind == TagKind::kKeyValues) {
        if (p.body == Body::kGenerate) {
          p.needs.push_back(tag);
          p.writes.push_back(tag);
        } else {
          p.discards.push_back(tag);
        }
      } else if (own && trained && p.updates) {
        p.needs.push_back(tag);
        p.writes.push_back(tag);
      } else if (own && !trained && !(tag.kind == TagKind::kAdapter && p.adapter_off)) {
        p.needs.push_back(tag);
        if (p.updates && (tag.kind == TagKind::kAdapter) == adapted) p.writes.push_back(tag);
      }
    }
  }

  Recipe recipe_;
};

void supervised(Builder& b, const Job& job) {
  b.trained(ModelId::kActor, job.actor_model.path, Head::kLanguageModel, job.actor_model,
            job.actor.optim);
  b.update(PhaseId::kTrain, Body::kCrossEntropyUpdate, ModelId::kActor);
  b.phase(PhaseId::kValidate, Body::kCrossEntropy, ModelId::kActor);
}

void reward_model(Builder& b, const Job& job) {
  b.trained(ModelId::kReward, job.actor_model.path, Head::kScalar, job.actor_model,
            job.actor.optim);
  b.update(PhaseId::kTrain, Body::kPairUpdate, ModelId::kReward);
  b.phase(PhaseId::kValidate, Body::kPairScores, ModelId::kReward);
}

// PPO; without a critic GRPO and its kin.
void policy_gradient(Builder& b, const Job& job, bool critic) {
  const bool reference = job.uses_reference();
  const bool base_is_reference = job.reference_is_actor_base();
  b.trained(ModelId::kActor, job.actor_model.path, Head::kLanguageModel, job.actor_model,
            job.actor.optim);
  b.key_values();
  if (reference && !base_is_reference)
    b.frozen(ModelId::kReference, job.reference_path(), Head::kLanguageModel);
  if (critic)
    b.trained(ModelId::kCritic, job.critic_path(), Head::kScalar, job.critic.model,
              job.critic.optim);
  b.frozen(ModelId::kReward, job.reward_model.path, Head::kScalar);

  b.phase(PhaseId::kGenerate, Body::kGenerate, ModelId::kActor);
  b.phase(PhaseId::kActorLogProbs, Body::kLogProbs, ModelId::kActor);
  if (reference) {
    const ModelId model = base_is_reference ? ModelId::kActor : ModelId::kReference;
    b.phase(PhaseId::kReferenceLogProbs, Body::kLogProbs, model).adapter_off = base_is_reference;
  }
  if (critic) b.phase(PhaseId::kValues, Body::kTokenScores, ModelId::kCritic);
  b.phase(PhaseId::kRewards, Body::kSequenceScores, ModelId::kReward);
  if (critic) b.update(PhaseId::kTrainCritic, Body::kValueUpdate, ModelId::kCritic);
  b.update(PhaseId::kTrainActor, Body::kPolicyUpdate, ModelId::kActor);
}

}  // namespace

std::vector<std::string> task_names() {
  return {kTaskNames.begin(), kTaskNames.end()};
}

std::string_view to_string(Task task) {
  return name_of(kTaskNames, task);
}
std::string_view to_string(ModelId model) {
  return name_of(kModelNames, model);
}
std::string_view to_string(PhaseId phase) {
  return name_of(kPhaseNames, phase);
}

bool trains(PhaseId phase) {
  return phase == PhaseId::kTrain || phase == PhaseId::kTrainActor ||
         phase == PhaseId::kTrainCritic;
}

std::string to_string(TagId tag) {
  const std::string_view owner = tag.kind == TagKind::kKeyValues ? "rollout" : to_string(tag.model);
  return format("{}.{}", owner, name_of(kTagNames, tag.kind));
}

Result<Task> parse_task(std::string_view name) {
  const auto it = std::find(kTaskNames.begin(), kTaskNames.end(), name);
  if (it != kTaskNames.end()) return static_cast<Task>(it - kTaskNames.begin());
  std::string known;
  for (const std::string_view task : kTaskNames)
    known += (known.empty() ? "" : ", ") + std::string(task);
  return Status(ErrorCode::kInvalidArgument, format("task is \"{}\"; it can be {}", name, known));
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

bool Recipe::frozen(TagId tag) const {
  return std::none_of(phases.begin(), phases.end(),
                      [&](const Phase& p) { return contains(p.writes, tag); });
}

Result<Recipe> describe(const Job& job) {
  NEAP_TRY_ASSIGN(const Task task, parse_task(job.task));
  Builder builder(task);
  switch (task) {
    case Task::kSft:
      supervised(builder, job);
      break;
    case Task::kReward:
      reward_model(builder, job);
      break;
    case Task::kPpo:
    case Task::kGrpo:
      policy_gradient(builder, job, task == Task::kPpo);
      break;
  }
  return builder.take();
}

}  // namespace neap::spec
