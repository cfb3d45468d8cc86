// Which homes the tensors of a model can have, and why not.
#include "plan/results/legal_homes.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
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
    [[nodiscard]] std::string reason(const ModelHomes& homes) const {
      return std::string(illegal_reason(facts.with(homes), role));
    }
  };
  [[nodiscard]] Model model(ModelId id, const std::vector<std::string>& keys = {}) const {
    const spec::Job job = this->job(keys);
    const spec::Recipe recipe = spec::describe(job);
    Result<JobModels> models = read_models(job, recipe, spec::Dtype::kBfloat16);
    EXPECT_TRUE(models.ok()) << models.status().message();
    return {models->at(id), recipe.find(id)->storage};
  }
};

ModelHomes with(ModelHomes homes, Home ModelHomes::*which, Home where) {
  homes.*which = where;
  return homes;
}

void expect_word(const std::string& reason, std::string_view word) {
  EXPECT_NE(reason.find(word), std::string::npos) << reason;
}

TEST_F(LegalHomes, LayersMoveAfterTheStatesOfTheirUpdate) {
  const Model critic = model(ModelId::kCritic);
  EXPECT_EQ(critic.reason({}), "");
  EXPECT_EQ(critic.reason(kStreamed), "");
  EXPECT_EQ(critic.reason({.layers = kDisk, .update = UpdateMode::kDisk}), "");
  expect_word(critic.reason({.layers = kHost, .update = UpdateMode::kSplit}), "part by part");
  expect_word(critic.reason({.layers = kDisk, .update = UpdateMode::kStreamed}), "disk first");
  // Frozen layers, and those under an adapter, have no states.
  for (const Home home : {kHost, kDisk}) {
    EXPECT_EQ(model(ModelId::kReward).reason({.layers = home}), "");
    EXPECT_EQ(model(ModelId::kCritic, {"critic.model.lora_rank=4"}).reason({.layers = home}), "");
  }
}

TEST_F(LegalHomes, TablesMoveWithLayersThatAreOffloadedWhole) {
  const Model critic = model(ModelId::kCritic);
  EXPECT_EQ(critic.reason(with(kStreamed, &ModelHomes::tables, kHost)), "");
  expect_word(critic.reason({.tables = kHost}), "only with the layers");
  expect_word(critic.reason(with(kStreamed, &ModelHomes::tables, kDisk)), "model's files");
  expect_word(model(ModelId::kActor).reason(with(kStreamed, &ModelHomes::tables, kHost)),
              "Decoding");
  expect_word(model(ModelId::kCritic, {"critic.zero_stage=3"})
                  .reason(with(kStreamed, &ModelHomes::tables, kHost)),
              "Shards");
  Model tied = model(ModelId::kActor);
  tied.role.generates = false;
  tied.role.shape.tie_word_embeddings = tied.role.whole.tie_word_embeddings = true;
  expect_word(tied.reason(with(kStreamed, &ModelHomes::tables, kHost)), "two stages");
}

TEST_F(LegalHomes, InputsOfTrainedLayersMoveWhereverTheLayersAre) {
  const auto inputs = [](const ModelHomes& homes) {
    return with(homes, &ModelHomes::inputs, kHost);
  };
  for (const ModelHomes& layers :
       {ModelHomes(), kStreamed, ModelHomes{.layers = kDisk, .update = UpdateMode::kDisk}})
    for (const char* zero : {"critic.zero_stage=0", "critic.zero_stage=3"})
      EXPECT_EQ(model(ModelId::kCritic, {zero}).reason(inputs(layers)), "");
  expect_word(model(ModelId::kCritic).reason(with(kStreamed, &ModelHomes::inputs, kDisk)),
              "host memory only");
  expect_word(model(ModelId::kReward).reason(inputs({.layers = kHost})), "frozen");
  Model staged = model(ModelId::kActor);
  EXPECT_EQ(staged.reason(inputs(kStreamed)), "");
  staged.role.shape.pipeline.stages = 1;
  staged.role.shape.pipeline.zero_bubble = true;
  EXPECT_EQ(staged.reason(inputs(kStreamed)), "") << "a job's key, of a model without stages";
  staged.role.shape.pipeline.stages = 2;
  expect_word(staged.reason(inputs(kStreamed)), "parts of a backward");
}

TEST_F(LegalHomes, ShardsOfGradientsAreWhereTheShardsOfWeightsAre) {
  const Model sharded = model(ModelId::kCritic, {"critic.zero_stage=3"});
  EXPECT_EQ(sharded.reason(with(kStreamed, &ModelHomes::gradients, kHost)), "");
  expect_word(sharded.reason(with(kStreamed, &ModelHomes::gradients, kDisk)),
              "shard of the weights");
  expect_word(sharded.reason({.gradients = kHost}), "shard of the weights");
  expect_word(model(ModelId::kCritic).reason(with(kStreamed, &ModelHomes::gradients, kHost)),
              "where their layers are");
}

TEST_F(LegalHomes, TheNearestLeavesOutWhatAModelCannotHave) {
  ModelHomes all = kStreamed;
  all.tables = all.inputs = all.gradients = kHost;
  const auto nearest = [&](const Model& of) { return nearest_legal(of.facts.with(all), of.role); };
  ModelHomes critic = kStreamed;
  critic.tables = critic.inputs = kHost;
  EXPECT_EQ(nearest(model(ModelId::kCritic)), critic);
  EXPECT_EQ(nearest(model(ModelId::kActor)), with(kStreamed, &ModelHomes::inputs, kHost));
  EXPECT_EQ(nearest(model(ModelId::kCritic, {"critic.zero_stage=3"})),
            with(with(kStreamed, &ModelHomes::gradients, kHost), &ModelHomes::inputs, kHost));
  const Model of = model(ModelId::kCritic);
  EXPECT_EQ(nearest_legal(of.facts.with({.layers = kHost}), of.role), std::nullopt);
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
