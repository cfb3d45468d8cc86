// docs/architecture.md, "To add an algorithm": best-of-n sampling (generate, score, train on the best
// response) as a list of phases with bodies that are there, and a loss that is not.
#include <gtest/gtest.h>

#include "plan/phase_schedule.h"
#include "plan/tags.h"
#include "plan/transients.h"
#include "step/counting_ops.h"
#include "step/losses.h"

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
  plan::JobModels models;
  plan::ModelRole& actor = models.actor.emplace();
  actor.name = "actor";
  actor.shape = tiny();
  actor.trained = true;
  plan::ModelRole& reward = models.reward.emplace();
  reward.name = "reward";
  reward.shape = tiny();
  reward.head = spec::Head::kScalar;
  const spec::Recipe recipe = best_of_n(job);
  plan::MemoryPlan plan;
  plan.tags = plan::build_tags(job, recipe, models, {});
  for (const spec::Phase& phase : recipe.phases)
    plan.phases.push_back(value_or_throw(plan::predict_phase(job, models, {}, phase)));
  ASSERT_EQ(plan.phases.size(), 3U);
  EXPECT_EQ(plan.phases[2].name, "train");
  EXPECT_GT(plan.phases[2].transient_allocated, plan.phases[1].transient_allocated);
  ASSERT_TRUE(plan::solve_residency(plan, "auto").ok());
  EXPECT_FALSE(plan.peak.is_zero());
}

// The new loss: -log sigmoid(gap) of scores against a baseline, and its gradient.
template <class Ops, class T = typename Ops::Tensor>
T gap_gradient(Ops& ops, const T& scores, const T& baseline) {
  const T gap = ops.subtract(scores, baseline);
  const T d = ops.sigmoid(ops.negate(gap));
  ops.scale_(d, -1);
  return d;
}

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
  const auto scores = step::CountedTensor::outside({6, 10}, step::Dtype::kFloat32);
  {
    const auto d = gap_gradient(ops, scores, scores);
    EXPECT_EQ(d.shape(), scores.shape());
    EXPECT_EQ(memory.held, 240);
  }
  EXPECT_EQ(memory.held, 0);
  EXPECT_EQ(memory.peak, 3 * 240);
}

}  // namespace
}  // namespace neap
