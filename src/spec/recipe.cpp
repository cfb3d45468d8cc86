#include "spec/recipe.h"

#include <algorithm>

#include "base/format.h"

namespace neap::spec {
namespace {

// Indexed by the enums.
constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "generate",          "actor_logp",      "ref_logp",     "values",   "rewards",
    "train_critic",      "train_actor",     "train",        "validate", "backward_critic",
    "update_critic",     "backward_actor",  "update_actor", "backward", "update",
    "generate_baseline", "baseline_rewards"};
constexpr std::array<std::string_view, kTagKinds> kTagNames = {
    "weights", "buffers", "blocks", "adapter", "grads", "unit_grads", "optimizer", "kv", "nccl"};

template <class Enum, std::size_t N>
constexpr std::string_view name_of(const std::array<std::string_view, N>& names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

bool contains(const std::vector<TagId>& tags, TagId tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// The phase that runs `part` of what `joined` runs as one.
PhaseId phase_of(PhaseId joined, TrainPart part) {
  if (part != TrainPart::kBackward && part != TrainPart::kUpdate) return joined;
  const bool backward = part == TrainPart::kBackward;
  switch (joined) {
    case PhaseId::kTrainCritic:
      return backward ? PhaseId::kBackwardCritic : PhaseId::kUpdateCritic;
    case PhaseId::kTrainActor:
      return backward ? PhaseId::kBackwardActor : PhaseId::kUpdateActor;
    default:
      return backward ? PhaseId::kBackward : PhaseId::kUpdate;
  }
}

// Adds models with their tags, then phases, whose tags follow from what they do with their model.
class Builder {
 public:
  Builder(const Job& job, const ModelModes& modes)
      : job_(job),
        modes_(modes),
        evaluates_(job.task == Task::kEval),
        places_generation_(job.has_generation_placement()),
        has_stages_(job.mesh().size(Axis::kPipe) > 1) {
    recipe_.task = job.task;
  }

  void frozen(ModelId id, const std::string& path, Head head, const std::string& adapter = {}) {
    add_model({.id = id, .path = path, .head = head, .adapter = adapter});
  }
  void trained(const ModelSource& source) {
    add_model(source);
    ModelSource& model = recipe_.models.back();
    model.gradients_on_host =
        model.slice_on_host && !model.adapted() && modes_.gradients_on_host(source.id);
    if (!model.gradients_on_host) add_tag(TagKind::kGradients, source.id);
    model.slices_gradients =
        job_.data_parallel(source.id).slices_gradients() && (!model.streamed || model.adapted());
    if (model.slices_gradients) add_tag(TagKind::kUnitGradients, source.id);
    add_tag(TagKind::kOptimizer, source.id);
  }
  void key_values() { add_tag(TagKind::kKeyValues, ModelId::kActor); }

  Phase& phase(PhaseId id, Body body, ModelId model) {
    Phase& p = recipe_.phases.emplace_back();
    p.id = id;
    p.body = body;
    p.model = model;
    return p;
  }
  /// `joined`: the phase's name while it is one.
  void update(const Job& job, PhaseId joined, Body body, ModelId model) {
    if (modes_.of(model) == UpdateMode::kJoined) {
      phase(joined, body, model).part = TrainPart::kAll;
      return;
    }
    for (const TrainPart part : {TrainPart::kBackward, TrainPart::kUpdate}) {
      Phase& p = phase(phase_of(joined, part), body, model);
      p.part = part;
      p.times = update_shape(job, body).updates();
    }
  }

  [[nodiscard]] Recipe take() {
    for (const ModelSource& model : recipe_.models) {
      if (!gathers_to_generate(model) || !recipe_.generates(model.id)) continue;
      const bool has_slots = model.streamed || model.sliced;
      const TagId before{has_slots ? TagKind::kBuffers : TagKind::kWeights, model.id};
      recipe_.tags.insert(std::find(recipe_.tags.begin(), recipe_.tags.end(), before) + 1,
                          {TagKind::kBlocks, model.id});
    }
    for (Phase& p : recipe_.phases) fill_tags(p);
    const auto of_every_step = [](const Phase& p) { return p.times > 0 && p.share >= 1; };
    if (std::count_if(recipe_.phases.begin(), recipe_.phases.end(), of_every_step) == 1) {
      Phase& only = *std::find_if(recipe_.phases.begin(), recipe_.phases.end(), of_every_step);
      only.follows_itself = only.times == 1;
    }
    return std::move(recipe_);
  }

 private:
  void add_model(const ModelSource& source) {
    recipe_.models.push_back(source);
    const bool sliced = job_.data_parallel(source.id).slices_weights() && !evaluates_;
    recipe_.models.back().sliced = sliced;
    recipe_.models.back().streamed = modes_.streams_weights(source.id) && !sliced;
    recipe_.models.back().slice_on_host = modes_.streams_weights(source.id) && sliced;
    recipe_.models.back().streams_tables = modes_.streams_tables(source.id);
    recipe_.models.back().streams_states =
        source.trained != nullptr && streams_states(modes_.of(source.id));
    recipe_.models.back().states_on_disk =
        source.trained != nullptr && modes_.of(source.id) == UpdateMode::kDisk;
    recipe_.models.back().blocks_on_disk =
        modes_.streams_weights(source.id) && modes_.blocks_on_disk(source.id);
    recipe_.models.back().inputs_on_host =
        source.trained != nullptr && modes_.inputs_on_host(source.id);
    if (!recipe_.models.back().slice_on_host) add_tag(TagKind::kWeights, source.id);
    if (recipe_.models.back().streamed || recipe_.models.back().sliced)
      add_tag(TagKind::kBuffers, source.id);
    if (source.adapted()) add_tag(TagKind::kAdapter, source.id);
  }
  void add_tag(TagKind kind, ModelId model) { recipe_.tags.push_back({kind, model}); }
  /// Where it generates, it reads memory of its own.
  [[nodiscard]] bool gathers_to_generate(const ModelSource& model) const {
    return model.streamed || model.sliced || places_generation_;
  }

  // The tags that the job has, in their order.
  void fill_tags(Phase& p) const {
    const ModelSource& model = *recipe_.find(p.model);
    const bool adapted = model.adapted();
    const bool generates = p.body == Body::kGenerate;
    p.streams_weights = model.streamed && !generates;
    p.slices_weights = model.sliced && !generates;
    p.slices_gradients = model.slices_gradients && p.trains();
    p.slice_on_host = model.slice_on_host;
    p.gradients_on_host = model.gradients_on_host && p.trains();
    p.gathers_weights = gathers_to_generate(model) && generates;
    if (p.streams_weights || p.slices_weights) p.together = modes_.together(p.model);
    p.streams_tables = p.streams_weights && model.streams_tables;
    p.streams_states = model.streams_states && p.updates();
    p.states_on_disk = model.states_on_disk && p.updates();
    p.blocks_on_disk = model.blocks_on_disk;
    p.inputs_on_host = p.streams_weights && model.inputs_on_host && p.trains();
    for (const TagId tag : recipe_.tags) {
      if (tag.kind == TagKind::kKeyValues) {
        (generates ? p.needs : p.discards).push_back(tag);
        if (generates) p.writes.push_back(tag);
      } else if (tag.model == p.model) {
        fill_own_tag(p, tag.kind, tag, adapted);
      } else if (!p.runs_once() && runs_once(tag.model)) {
        p.discards.push_back(tag);
      }
    }
  }
  // No phase of a step runs the model.
  [[nodiscard]] bool runs_once(ModelId model) const {
    return std::none_of(recipe_.phases.begin(), recipe_.phases.end(),
                        [&](const Phase& p) { return p.model == model && !p.runs_once(); });
  }

  // A tag of the phase's own model. `adapted`: the adapter is what training changes.
  void fill_own_tag(Phase& p, TagKind kind, TagId tag, bool adapted) const {
    const bool steps = p.updates();
    switch (kind) {
      case TagKind::kWeights:
      case TagKind::kAdapter: {
        const bool changes = (kind == TagKind::kAdapter) == adapted;
        if (kind == TagKind::kAdapter && p.adapter_off) return;
        if (p.part == TrainPart::kUpdate && !changes) return;
        p.needs.push_back(tag);
        if (steps && changes) p.writes.push_back(tag);
        return;
      }
      case TagKind::kBuffers:
      case TagKind::kBlocks: {
        // Where ranks divide a sliced model to generate, whole units pass the slots, and leave their parts. Those of
        // stages have a place in the blocks.
        const bool passes_slots = places_generation_ && !has_stages_;
        const bool used = p.gathers_weights ? kind == TagKind::kBlocks || passes_slots
                                            : kind == TagKind::kBuffers;
        // The parts of an update come to the optimizer's slots.
        if (p.part == TrainPart::kUpdate || !used) return;
        p.needs.push_back(tag);
        p.writes.push_back(tag);
        return;
      }
      case TagKind::kGradients:
      case TagKind::kUnitGradients:
        if (!p.trains()) return;
        if (kind == TagKind::kUnitGradients && p.part == TrainPart::kUpdate) return;
        p.needs.push_back(tag);
        p.writes.push_back(tag);
        return;
      case TagKind::kOptimizer:
        if (!steps) return;
        p.needs.push_back(tag);
        p.writes.push_back(tag);
        return;
      case TagKind::kKeyValues:
      case TagKind::kPeers:
        return;
    }
  }

  const Job& job_;
  ModelModes modes_;
  bool evaluates_, places_generation_, has_stages_;
  Recipe recipe_;
};

// What the keys of the actor say of a trained model.
ModelSource trained_actor(const Job& job, ModelId id, Head head) {
  return {.id = id,
          .path = job.actor_model.path,
          .head = head,
          .trained = &job.actor_model,
          .optimizer = &job.actor.optim,
          .grad_clip = job.actor.grad_clip};
}

// Runs every test_freq steps. Where it never does it is planned all the same: the last step may have one.
void validation(Builder& b, const Job& job, Body body, ModelId model) {
  const bool repeats = job.trainer.test_freq > 0 && !job.data.val_files.empty();
  b.phase(PhaseId::kValidate, body, model).share =
      repeats ? 1 / static_cast<double>(job.trainer.test_freq) : 0;
}

void supervised(Builder& b, const Job& job) {
  b.trained(trained_actor(job, ModelId::kActor, Head::kLanguageModel));
  b.update(job, PhaseId::kTrain, Body::kCrossEntropyUpdate, ModelId::kActor);
  validation(b, job, Body::kCrossEntropy, ModelId::kActor);
}

void reward_model(Builder& b, const Job& job) {
  ModelSource reward = trained_actor(job, ModelId::kReward, Head::kScalar);
  reward.init_head = true;
  b.trained(reward);
  b.update(job, PhaseId::kTrain, Body::kPairUpdate, ModelId::kReward);
  validation(b, job, Body::kPairScores, ModelId::kReward);
}

// A frozen reference and its log-probabilities, from the actor's base where that is the same.
void reference_model(Builder& b, const Job& job) {
  if (job.uses_reference() && !job.reference_is_actor_base())
    b.frozen(ModelId::kReference, job.reference_path(), Head::kLanguageModel);
}
void reference_log_probs(Builder& b, const Job& job) {
  if (!job.uses_reference()) return;
  const bool base = job.reference_is_actor_base();
  Phase& p = b.phase(PhaseId::kReferenceLogProbs, Body::kLogProbs,
                     base ? ModelId::kActor : ModelId::kReference);
  p.adapter_off = base;
  if (job.precomputes_reference()) p.times = 0;
}

// DPO.
void preferences(Builder& b, const Job& job) {
  b.trained(trained_actor(job, ModelId::kActor, Head::kLanguageModel));
  reference_model(b, job);
  if (!job.precomputes_reference()) reference_log_probs(b, job);
  b.update(job, PhaseId::kTrain, Body::kPreferenceUpdate, ModelId::kActor);
  validation(b, job, Body::kCrossEntropy, ModelId::kActor);
  if (job.precomputes_reference()) reference_log_probs(b, job);
}

// PPO; without a critic: GRPO and similar algorithms.
void policy_gradient(Builder& b, const Job& job, bool critic) {
  b.trained(trained_actor(job, ModelId::kActor, Head::kLanguageModel));
  b.key_values();
  reference_model(b, job);
  if (critic)
    b.trained({.id = ModelId::kCritic,
               .path = job.critic_path(),
               .head = Head::kScalar,
               .trained = &job.critic.model,
               .optimizer = &job.critic.optim,
               .grad_clip = job.critic.grad_clip,
               .init_head = job.starts_critic_head()});
  if (job.has_reward_model()) b.frozen(ModelId::kReward, job.reward_model.path, Head::kScalar);

  b.phase(PhaseId::kGenerate, Body::kGenerate, ModelId::kActor);
  // Dynamic sampling repeats generation and rewards, or what it compares, until the batch is full.
  const bool filter = job.algorithm.filter_groups.enable;
  if (filter && job.has_reward_model())
    b.phase(PhaseId::kRewards, Body::kSequenceScores, ModelId::kReward);
  const bool baseline = job.has_greedy_baseline();
  const auto generate_baseline = [&] {
    if (baseline)
      b.phase(PhaseId::kGenerateBaseline, Body::kGenerate, ModelId::kActor).baseline = true;
  };
  if (!job.filters_by_kl()) generate_baseline();
  if (!job.bypasses_old_log_probs())
    b.phase(PhaseId::kActorLogProbs, Body::kLogProbs, ModelId::kActor).entropy = true;
  reference_log_probs(b, job);
  if (job.filters_by_kl()) generate_baseline();
  if (critic) b.phase(PhaseId::kValues, Body::kTokenScores, ModelId::kCritic);
  if (job.has_reward_model()) {
    if (!filter) b.phase(PhaseId::kRewards, Body::kSequenceScores, ModelId::kReward);
    if (baseline)
      b.phase(PhaseId::kBaselineRewards, Body::kSequenceScores, ModelId::kReward).baseline = true;
  }
  if (critic) b.update(job, PhaseId::kTrainCritic, Body::kValueUpdate, ModelId::kCritic);
  b.update(job, PhaseId::kTrainActor, Body::kPolicyUpdate, ModelId::kActor);
}

// Responses to held-out prompts and, with a reward model, their scores.
void evaluation(Builder& b, const Job& job) {
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
  if (tag.kind == TagKind::kKeyValues) owner = "rollout";
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
      return p.model == model.id && !p.runs_once() && p.body != Body::kGenerate;
    };
    // It generates with other weights than it trains.
    const bool placed =
        !model.streamed && !model.sliced && contains(recipe.tags, {TagKind::kBlocks, model.id});
    if (!placed && std::any_of(recipe.phases.begin(), recipe.phases.end(), can_stream))
      out.push_back(model.id);
  }
  return out;
}

Recipe describe(const Job& job, const ModelModes& modes) {
  Builder builder(job, modes);
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
