// Which homes the tensors of a model can have, and why weights stay on the device.
#include "plan/results/legal_homes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common_choices_fixture.h"

namespace neap::plan {
namespace {

using spec::Home;
using spec::ModelHomes;
using spec::ModelId;
using spec::UpdateMode;
constexpr Home kHost = Home::kHost, kDisk = Home::kDisk;
constexpr ModelHomes kStreamed{.layers = kHost, .update = UpdateMode::kStreamed};

class LegalHomes : public CommonChoicesTest {
 protected:
  struct Model {
    ModelRole role;
    spec::ModelStorage facts;
    spec::Recipe recipe;
    [[nodiscard]] bool can_have(const ModelHomes& homes) const {
      return is_legal(facts.with(homes), role);
    }
    [[nodiscard]] std::string kept(spec::TagKind tag, const ModelHomes& homes) const {
      return std::string(kept_reason(tag, facts.with(homes), role, recipe));
    }
  };
  [[nodiscard]] Model model(ModelId id, const std::vector<std::string>& keys = {}) const {
    const spec::Job job = this->job(keys);
    const spec::Recipe recipe = spec::describe(job);
    Result<JobModels> models = read_models(job, recipe, spec::Dtype::kBfloat16);
    EXPECT_TRUE(models.ok()) << models.status().message();
    return {models->at(id), recipe.find(id)->storage, recipe};
  }
};

// Two layers of the first stage are too few.
const std::vector<std::string> kHalves{
    "actor_rollout_ref.actor.pipeline_model_parallel_layout=[4,4]"};

ModelHomes with(ModelHomes homes, Home ModelHomes::*which, Home where) {
  homes.*which = where;
  return homes;
}

TEST_F(LegalHomes, LayersMoveAfterTheStatesOfTheirUpdate) {
  const Model critic = model(ModelId::kCritic);
  EXPECT_TRUE(critic.can_have({}));
  EXPECT_TRUE(critic.can_have(kStreamed));
  EXPECT_TRUE(critic.can_have({.layers = kDisk, .update = UpdateMode::kDisk}));
  EXPECT_FALSE(critic.can_have({.layers = kHost, .update = UpdateMode::kSplit}));
  EXPECT_FALSE(critic.can_have({.layers = kDisk, .update = UpdateMode::kStreamed}));
  // Frozen layers, and those under an adapter, have no states.
  for (const Home home : {kHost, kDisk}) {
    EXPECT_TRUE(model(ModelId::kReward).can_have({.layers = home}));
    EXPECT_TRUE(model(ModelId::kCritic, {"critic.model.lora_rank=4"}).can_have({.layers = home}));
  }
}

TEST_F(LegalHomes, TablesMoveWithLayersThatAreOffloadedWhole) {
  const ModelHomes tables = with(kStreamed, &ModelHomes::tables, kHost);
  const Model critic = model(ModelId::kCritic);
  EXPECT_TRUE(critic.can_have(tables));
  EXPECT_FALSE(critic.can_have({.tables = kHost}));
  EXPECT_FALSE(critic.can_have(with(kStreamed, &ModelHomes::tables, kDisk)));
  EXPECT_FALSE(model(ModelId::kActor, kHalves).can_have(tables));
  EXPECT_FALSE(model(ModelId::kCritic, {"critic.zero_stage=3"}).can_have(tables));
  Model tied = model(ModelId::kActor, kHalves);
  tied.role.generates = false;
  tied.role.shape.tie_word_embeddings = tied.role.whole.tie_word_embeddings = true;
  EXPECT_FALSE(tied.can_have(tables));
}

TEST_F(LegalHomes, InputsOfTrainedLayersMoveWhereverTheLayersAre) {
  const auto inputs = [](const ModelHomes& homes) {
    return with(homes, &ModelHomes::inputs, kHost);
  };
  for (const ModelHomes& layers :
       {ModelHomes(), kStreamed, ModelHomes{.layers = kDisk, .update = UpdateMode::kDisk}})
    for (const char* zero : {"critic.zero_stage=0", "critic.zero_stage=3"})
      EXPECT_TRUE(model(ModelId::kCritic, {zero}).can_have(inputs(layers)));
  EXPECT_FALSE(model(ModelId::kCritic).can_have(with(kStreamed, &ModelHomes::inputs, kDisk)));
  EXPECT_FALSE(model(ModelId::kReward).can_have(inputs({.layers = kHost})));
  EXPECT_TRUE(
      model(ModelId::kActor, {kHalves[0], "parallel.pipeline_parallel_schedule=zero_bubble"})
          .can_have(inputs(kStreamed)));
}

TEST_F(LegalHomes, ShardsOfGradientsAreWhereTheShardsOfWeightsAre) {
  const Model sharded = model(ModelId::kCritic, {"critic.zero_stage=3"});
  EXPECT_TRUE(sharded.can_have(with(kStreamed, &ModelHomes::gradients, kHost)));
  EXPECT_FALSE(sharded.can_have(with(kStreamed, &ModelHomes::gradients, kDisk)));
  EXPECT_FALSE(sharded.can_have({.gradients = kHost}));
  EXPECT_FALSE(model(ModelId::kCritic).can_have(with(kStreamed, &ModelHomes::gradients, kHost)));
}

TEST_F(LegalHomes, TheNearestLeavesOutWhatAModelCannotHave) {
  ModelHomes all = kStreamed;
  all.tables = all.inputs = all.gradients = kHost;
  const auto nearest = [&](const Model& of) { return nearest_legal(of.facts.with(all), of.role); };
  ModelHomes critic = kStreamed;
  critic.tables = critic.inputs = kHost;
  EXPECT_EQ(nearest(model(ModelId::kCritic)), critic);
  EXPECT_EQ(nearest(model(ModelId::kActor, kHalves)), with(kStreamed, &ModelHomes::inputs, kHost));
  EXPECT_EQ(nearest(model(ModelId::kCritic, {"critic.zero_stage=3"})),
            with(with(kStreamed, &ModelHomes::gradients, kHost), &ModelHomes::inputs, kHost));
  const Model of = model(ModelId::kCritic);
  EXPECT_EQ(nearest_legal(of.facts.with({.layers = kHost}), of.role), std::nullopt);
}

// Two buffers of two layers would hold all of them.
TEST_F(LegalHomes, FewLayersStay) {
  Model few = model(ModelId::kReward);
  few.role.shape.num_hidden_layers = few.role.whole.num_hidden_layers = 2;
  EXPECT_FALSE(few.can_have({.layers = kHost}));
  EXPECT_FALSE(model(ModelId::kActor).can_have(kStreamed));
  few.facts.shards_weights = true;  // a shard is loaded range by range
  EXPECT_TRUE(few.can_have({.layers = kHost}));
}

TEST_F(LegalHomes, WeightsThatStayHaveAReason) {
  using spec::TagKind;
  using testing::HasSubstr;
  const Model actor = model(ModelId::kActor, kHalves), reward = model(ModelId::kReward);
  EXPECT_THAT(actor.kept(TagKind::kWeights, kStreamed), HasSubstr("decoding reads the embedding"));
  EXPECT_THAT(actor.kept(TagKind::kBlocks, kStreamed), HasSubstr("decoding reads all weights"));
  EXPECT_EQ(actor.kept(TagKind::kWeights, {}), "");
  EXPECT_EQ(actor.kept(TagKind::kGradients, kStreamed), "");
  EXPECT_EQ(reward.kept(TagKind::kWeights, {.layers = kHost}), "");
  Model few = reward;
  few.role.shape.num_hidden_layers = few.role.whole.num_hidden_layers = 2;
  EXPECT_THAT(few.kept(TagKind::kWeights, {}), HasSubstr("at most two of its layers"));
}

// Plans name the weights that decoding keeps on the device. So do refusals of a capacity.
TEST_F(LegalHomes, RefusalsSayWhyWeightsStay) {
  const std::string stays = "stays on the device: decoding reads";
  // Deterministic jobs decode all sequences together, so that decoding needs most.
  const spec::Job job = this->job({"trainer.deterministic=true"});
  const Result<MemoryPlan> none = make_plan(job, target(1_MiB));
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.status().message(), testing::HasSubstr(stays));
  const Result<MemoryPlan> other =
      make_plan(this->job({"memory.allow=[\"recompute\", \"offload\"]"}), target(1_MiB));
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.status().message(), testing::Not(testing::HasSubstr(stays)));
}

// A tensor that a model does not have, or has in another way, has no home of its own.
TEST(Homes, WhatARankStoresFollowsFromHomesAndShards) {
  ModelHomes all{.layers = kHost, .tables = kHost, .inputs = kHost, .gradients = kHost};
  all.update = UpdateMode::kDisk;
  const spec::DataParallel alone, zero2{2, 2}, zero3{2, 3};
  const spec::ModelStorage whole = spec::derive(all, alone, true, false);
  EXPECT_TRUE(whole.streams_layers() && whole.streams_tables());
  EXPECT_EQ(whole.inputs, kHost);
  EXPECT_EQ(whole.states(), kDisk);
  EXPECT_FALSE(whole.streams_shard() || whole.streams_gradients() || whole.shards_gradients);
  // Whole gradients are with offloaded layers; those of adapters stay.
  EXPECT_FALSE(spec::derive(all, zero2, true, false).shards_gradients);
  EXPECT_TRUE(spec::derive(all, zero2, true, true).shards_gradients);
  const spec::ModelStorage shard = spec::derive(all, zero3, true, false);
  EXPECT_TRUE(shard.streams_shard() && shard.streams_gradients() && shard.shards_gradients);
  EXPECT_FALSE(shard.streams_layers() || shard.streams_tables());
  EXPECT_TRUE(shard.streams_inputs());
  const spec::ModelStorage inputs = spec::derive({.inputs = kHost}, alone, true, false);
  EXPECT_TRUE(inputs.streams_inputs() && inputs.uses_buffers());
  EXPECT_FALSE(inputs.brings_layers());
  const spec::ModelStorage frozen = spec::derive(all, alone, false, false);
  EXPECT_TRUE(frozen.streams_layers() && frozen.streams_tables());
  EXPECT_EQ(frozen.inputs, Home::kDevice);
  EXPECT_FALSE(frozen.streams_states());
}

}  // namespace
}  // namespace neap::plan
