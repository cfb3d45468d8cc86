#include "spec/recipe/recipe_builder.h"

#include <algorithm>
#include <utility>

namespace neap::spec {
namespace {

// The phase that runs `part` when `joined` is divided.
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

// Whether a phase computes logits in chunks. Generation computes those of one token at a time.
bool makes_logits(const Phase& phase) {
  switch (phase.body) {
    case Body::kLogProbs:
    case Body::kCrossEntropy:
      return true;
    case Body::kPolicyUpdate:
    case Body::kCrossEntropyUpdate:
    case Body::kPreferenceUpdate:
      return phase.part != TrainPart::kUpdate;
    case Body::kGenerate:
    case Body::kRolloutWeights:
    case Body::kTokenScores:
    case Body::kSequenceScores:
    case Body::kPairScores:
    case Body::kValueUpdate:
    case Body::kPairUpdate:
      break;
  }
  return false;
}

}  // namespace

RecipeBuilder::RecipeBuilder(const Job& job, const StepModes& modes)
    : job_(job),
      modes_(modes),
      evaluates_(job.task == Task::kEval),
      places_generation_(job.has_generation_placement()),
      copies_(job.copies_rollout_weights()),
      has_stages_(job.mesh().size(Axis::kPipe) > 1) {
  recipe_.task = job.task;
}

void RecipeBuilder::trained(const ModelSource& source) {
  add_model(source);
  const ModelStorage& storage = recipe_.models.back().storage;
  if (!storage.streams_gradients()) add_tag(TagKind::kGradients, source.id);
  if (storage.shards_gradients) add_tag(TagKind::kUnitGradients, source.id);
  add_tag(TagKind::kOptimizer, source.id);
}

Phase& RecipeBuilder::phase(PhaseId id, Body body, ModelId model) {
  Phase& p = recipe_.phases.emplace_back();
  p.id = id;
  p.body = body;
  p.model = model;
  return p;
}

void RecipeBuilder::update(PhaseId joined, Body body, ModelId model) {
  if (modes_.of(model).update == UpdateMode::kJoined) {
    phase(joined, body, model).part = TrainPart::kAll;
    return;
  }
  for (const TrainPart part : {TrainPart::kBackward, TrainPart::kUpdate}) {
    Phase& p = phase(phase_of(joined, part), body, model);
    p.part = part;
    p.times = update_shape(job_, body).updates();
  }
}

Recipe RecipeBuilder::take() {
  for (const ModelSource& model : recipe_.models) {
    if (!gathers_to_generate(model) || !recipe_.generates(model.id)) continue;
    const TagId before{model.storage.brings_layers() ? TagKind::kBuffers : TagKind::kWeights,
                       model.id};
    recipe_.tags.insert(std::find(recipe_.tags.begin(), recipe_.tags.end(), before) + 1,
                        {TagKind::kBlocks, model.id});
  }
  for (Phase& p : recipe_.phases) fill_tags(p);
  return std::move(recipe_);
}

void RecipeBuilder::add_model(const ModelSource& source) {
  recipe_.models.push_back(source);
  ModelSource& model = recipe_.models.back();
  model.storage =
      derive(modes_.of(source.id), evaluates_ ? DataParallel() : job_.data_parallel(source.id),
             source.trained != nullptr, source.adapted());
  if (!model.storage.streams_shard()) add_tag(TagKind::kWeights, source.id);
  if (model.storage.uses_buffers()) add_tag(TagKind::kBuffers, source.id);
  if (source.adapted()) add_tag(TagKind::kAdapter, source.id);
}

void RecipeBuilder::fill_tags(Phase& p) const {
  const ModelSource& model = *recipe_.find(p.model);
  const bool adapted = model.adapted();
  const bool generates = p.body == Body::kGenerate;
  // The phase that fills the rollout's weights.
  const bool fills = copies_ ? p.body == Body::kRolloutWeights && !p.loads_weights : generates;
  p.gathers_weights = gathers_to_generate(model) && fills;
  p.storage = model.storage;
  if (!p.brings_layers()) {
    p.storage.tables = Home::kDevice;
    p.storage.together = 1;
  }
  if (!p.trains()) {
    p.storage.inputs = p.storage.gradients = Home::kDevice;
    p.storage.shards_gradients = false;
  }
  if (p.part == TrainPart::kUpdate) {
    p.storage.inputs = Home::kDevice;
    p.storage.together = 1;
  }
  if (p.is_of_rollout() && !p.gathers_weights) p.storage.layers = Home::kDevice;
  if (!p.updates()) p.storage.update = UpdateMode::kJoined;
  if (makes_logits(p)) p.logits_chunk = modes_.logits_chunk;
  p.graphs = generates && modes_.graphs;
  for (const TagId tag : recipe_.tags) {
    if (tag.kind == TagKind::kKeyValues || tag.kind == TagKind::kGraphs) {
      const bool needed = generates || p.id == PhaseId::kWakeUp;
      (needed ? p.needs : p.discards).push_back(tag);
      if (generates) p.writes.push_back(tag);
    } else if (tag.kind == TagKind::kBlocks && copies_) {
      (p.is_of_rollout() ? p.needs : p.discards).push_back(tag);
      if (p.gathers_weights || p.loads_weights) p.writes.push_back(tag);
    } else if (copies_ && p.is_of_rollout() && !p.gathers_weights && tag.model == p.model) {
      // The trained model is not used.
    } else if (tag.model == p.model) {
      fill_own_tag(p, tag.kind, tag, adapted);
    } else if (!p.runs_once() && runs_once(tag.model)) {
      p.discards.push_back(tag);
    }
  }
}

bool RecipeBuilder::runs_once(ModelId model) const {
  return std::none_of(recipe_.phases.begin(), recipe_.phases.end(),
                      [&](const Phase& p) { return p.model == model && !p.runs_once(); });
}

void RecipeBuilder::fill_own_tag(Phase& p, TagKind kind, TagId tag, bool adapted) const {
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
      // If rollouts of a ZeRO-3 model use another tensor-parallel size, whole units pass through
      // the prefetch buffers and only the rank's shards are kept. With stages or offloaded weights,
      // units have space in the rollout weights instead.
      const bool passes_slots =
          places_generation_ && !has_stages_ && recipe_.find(p.model)->storage.shards_weights;
      const bool used =
          p.gathers_weights ? kind == TagKind::kBlocks || passes_slots : kind == TagKind::kBuffers;
      // An update loads the states in parts into prefetch buffers.
      if (p.part == TrainPart::kUpdate || !used) return;
      if (kind == TagKind::kBuffers && !p.storage.uses_buffers()) return;
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
    case TagKind::kGraphs:
    case TagKind::kGraphNodes:
    case TagKind::kPeers:
      return;
  }
}

}  // namespace neap::spec
