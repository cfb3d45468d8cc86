// CONTRIBUTING.md, "To add an algorithm": best-of-n sampling (generate, score, train on the best
// response) as a list of phases with bodies that are there, and a loss that is not.
#include <gtest/gtest.h>

#include "plan/counting/counted_model.h"
#include "plan/counting/phase_inputs.h"
#include "plan/counting/tags.h"
#include "plan/counting/transients.h"
#include "plan/results/memory_plan.h"
#include "step/counting/counting_ops.h"
#include "step/training/training.h"
#include "unit/step/train_micro_batch.h"

namespace neap {
namespace {

using spec::ModelId;
using spec::TagId;
using spec::TagKind;

spec::Architecture tiny() {
  return value_or_throw(spec::Architecture::from_json(Json{{"model_type", "llama"},
                                                           {"vocab_size", 101},
                                                           {"hidden_size", 64},
                                                           {"intermediate_size", 96},
                                                           {"num_hidden_layers", 2},
                                                           {"num_attention_heads", 4},
                                                           {"max_position_embeddings", 256}},
                                                      "tiny"));
}

spec::Recipe best_of_n(const spec::Job& job) {
  const TagId weights{TagKind::kWeights, ModelId::kActor};
  const TagId gradients{TagKind::kGradients, ModelId::kActor};
  const TagId optimizer{TagKind::kOptimizer, ModelId::kActor};
  const TagId cache{TagKind::kKeyValues, ModelId::kActor};
  const TagId judge{TagKind::kWeights, ModelId::kReward};
  spec::Recipe recipe;
  recipe.models = {
      {ModelId::kActor, "", spec::Head::kLanguageModel, &job.actor_model, &job.actor.optim},
      {ModelId::kReward, "", spec::Head::kScalar, nullptr, nullptr}};
  recipe.tags = {weights, gradients, optimizer, cache, judge};
  const auto phase = [](spec::PhaseId id, spec::Body body, ModelId model) {
    spec::Phase p;
    p.id = id;
    p.body = body;
    p.model = model;
    return p;
  };
  auto generate = phase(spec::PhaseId::kGenerate, spec::Body::kGenerate, ModelId::kActor);
  generate.needs = {weights, cache};
  generate.writes = {cache};
  auto score = phase(spec::PhaseId::kRewards, spec::Body::kSequenceScores, ModelId::kReward);
  score.needs = {judge};
  score.discards = {cache};
  auto train = phase(spec::PhaseId::kTrain, spec::Body::kCrossEntropyUpdate, ModelId::kActor);
  train.part = spec::TrainPart::kAll;
  train.needs = train.writes = {weights, gradients, optimizer};
  train.discards = {cache};
  recipe.phases = {generate, score, train};
  return recipe;
}

TEST(AlgorithmRecipe, ItsPhasesArePlannedAndFitUnderACeiling) {
  spec::Job job;
  job.data.use_dynamic_bsz = job.actor.use_dynamic_bsz = false;
  job.data.max_prompt_length = 16;
  job.data.max_response_length = 48;
  plan::JobModels models;
  plan::ModelRole& actor = models.actor.emplace();
  actor.shape = tiny();
  actor.trained = true;
  plan::ModelRole& reward = models.reward.emplace();
  reward.id = spec::ModelId::kReward;
  reward.shape = tiny();
  reward.head = spec::Head::kScalar;
  const spec::Recipe recipe = best_of_n(job);
  plan::MemoryPlan plan;
  plan.tags = plan::build_tags(job, recipe, models, {});
  for (const spec::Phase& phase : recipe.phases)
    plan.phases.push_back(value_or_throw(plan::predict_phase(job, models, {}, phase)));
  ASSERT_EQ(plan.phases.size(), 3U);
  EXPECT_EQ(plan.phases[2].id, spec::PhaseId::kTrain);
  EXPECT_GT(plan.phases[2].transient_allocated, plan.phases[1].transient_allocated);
  ASSERT_TRUE(plan::solve_residency(plan, spec::Residency::kAuto).ok());
  EXPECT_FALSE(plan.peak.is_zero());
}

// The new loss: the log-probability of the responses, pushed down by `strength`.
struct Unlikelihood {
  double strength = 1;
  static constexpr std::int64_t kSequencesOfRow = 1;

  template <class Ops, class T = typename Ops::Tensor>
  T d_hidden(Ops& ops, const step::Weights<T>& w, const step::Experience<T>&,
             const step::DeviceBatch<Ops>& batch, const T& hidden,
             step::KeptNumbers<T>& numbers) const {
    const T rows = batch.response_rows(), targets = batch.targets();
    const auto out = step::log_probs(ops, w, hidden, rows, targets, {});
    const T slope = ops.clone(batch.mask());
    ops.scale_(slope, strength);
    numbers = {ops, {{"train/loss", step::weighed(batch.by_sequence(out.log_probs), slope)}}};
    return step::log_probs_backward(ops, w, hidden, rows, targets, out, batch.by_row(slope), T(),
                                    {});
  }
};

class Bytes final : public step::MemorySink {
 public:
  std::uint64_t allocate(std::int64_t bytes) override {
    held += bytes;
    peak = std::max(peak, held);
    return static_cast<std::uint64_t>(bytes);
  }
  void release(std::uint64_t address) override { held -= static_cast<std::int64_t>(address); }
  std::int64_t held = 0, peak = 0;
};

TEST(AlgorithmRecipe, ANewLossIsCountedByRunningIt) {
  Bytes memory;
  step::CountingOps ops(memory, {}, 1);
  spec::Job job;
  plan::ModelRole role;
  role.shape = tiny();
  role.trained = true;
  const auto host = [](const step::Shape& shape, step::Dtype dtype) {
    return step::CountedTensor::outside(shape, dtype);
  };
  const spec::Phase phase = best_of_n(job).phases[2];
  const step::KernelProfile profile;
  const auto e = plan::PhaseInputs<step::CountedTensor, decltype(host)>(job, profile, host)
                     .experience(role.shape, phase);
  const auto weights = plan::counted_weights(role, step::Dtype::kFloat32);
  const auto peak = [&](const auto& objective) {
    memory.peak = 0;
    EXPECT_EQ(step::train_micro_batch(ops, weights, e, 0, 2, objective, {}).at(0).name,
              "train/loss");
    EXPECT_EQ(memory.held, 0);
    return memory.peak;
  };
  // Cross entropy holds logits and a copy of them.
  EXPECT_GT(peak(Unlikelihood{}), 0);
  EXPECT_LE(peak(Unlikelihood{}), peak(step::CrossEntropyObjective{}));
}

}  // namespace
}  // namespace neap
