// What a run's records put to the lines of a sheet.
#include "formulas/measured.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace neap::formulas {
namespace {

class MeasuredTest : public ::testing::Test {
 protected:
  void load(const char* name, const std::vector<std::string>& overrides = {}) {
    const std::filesystem::path plans =
        std::filesystem::path(NEAP_SOURCE_DIR) / "tests" / "golden" / "plan";
    const Status loaded = spec::Job::load(plans / name, overrides, job_);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    plan::Target target;
    target.cuda = true;
    Result<JobSizes> sizes = read_sizes(job_, target);
    ASSERT_TRUE(sizes.ok()) << sizes.status().message();
    sizes_ = std::move(sizes).value();
    run_.tags_from = "memory.ntrace";
    run_.temporaries_from = "phases.jsonl";
  }
  Sheet measured() {
    Result<Sheet> sheet =
        make_sheet(sizes_, degrees_of(job_, job_.main_model()), own_degrees_of(job_));
    EXPECT_TRUE(sheet.ok()) << sheet.status().message();
    add_measured(job_, sizes_, run_, *sheet);
    return std::move(sheet).value();
  }
  static double value(const Sheet& sheet, const char* id) {
    const Line* line = sheet.find(id);
    return line != nullptr && line->measured ? line->measured->value : -1;
  }

  spec::Job job_;
  JobSizes sizes_;
  RunRecords run_;
};

TEST_F(MeasuredTest, LinesHaveTheRecordsOfTheirTagsAndPhases) {
  load("qwen7b_grpo.toml");
  run_.measured.tags = {{"actor.weights", 100}, {"reference.weights", 20}, {"reward.weights", 3},
                        {"actor.grads", 1000},  {"actor.optimizer", 4000}, {"rollout.kv", 50},
                        {"ranks.nccl", 7}};
  run_.measured.temporaries = {{"train_actor", 600}, {"generate", 9}};
  const Sheet sheet = measured();
  EXPECT_EQ(value(sheet, "actor.weights"), 100);
  EXPECT_EQ(value(sheet, "reference.weights"), 20);
  EXPECT_EQ(value(sheet, "actor.gradients"), 1000);
  EXPECT_EQ(value(sheet, "actor.mixed_gradients"), 1000);
  EXPECT_EQ(value(sheet, "actor.optimizer"), 4000);
  EXPECT_EQ(value(sheet, "actor.states"), 5100);
  EXPECT_EQ(value(sheet, "actor.transient"), 600);
  EXPECT_EQ(value(sheet, "rollout.kv"), 50);
  EXPECT_EQ(value(sheet, "rank.weights"), 123);
  EXPECT_EQ(value(sheet, "rank.states"), 5123);
  EXPECT_EQ(value(sheet, "rank.total"), 5723);
  EXPECT_EQ(value(sheet, "rank.kv"), 50);
  EXPECT_EQ(value(sheet, "rank.generation"), 150);
  EXPECT_EQ(sheet.find("rank.generation")->measured->source,
            "memory.ntrace: actor.weights, memory.ntrace: rollout.kv");
  // No record says what blocks keep, or how many parameters there are.
  for (const char* id : {"actor.parameters", "actor.activations", "actor.layer_full",
                         "actor.output", "actor.mixed_weights", "rank.activations"})
    EXPECT_EQ(value(sheet, id), -1) << id;
}

TEST_F(MeasuredTest, WhatLacksARecordHasNone) {
  load("qwen7b_grpo.toml");
  // Streamed: no tag of whole weights; the update in phases of its own.
  run_.measured.tags = {{"actor.prefetch", 10},
                        {"reference.weights", 20},
                        {"reward.weights", 3},
                        {"actor.optimizer", 40},
                        {"actor.grads", 1000}};
  run_.measured.temporaries = {{"backward_actor", 600}};
  const Sheet sheet = measured();
  EXPECT_EQ(value(sheet, "reference.weights"), 20);
  EXPECT_EQ(value(sheet, "rank.optimizer"), 40);
  for (const char* id : {"actor.weights", "actor.states", "actor.transient", "rank.weights",
                         "rank.states", "rank.total", "rank.kv", "rank.generation", "rollout.kv"})
    EXPECT_EQ(value(sheet, id), -1) << id;
  run_.measured = {};
  for (const Section& section : measured().sections)
    for (const Line& line : section.lines) EXPECT_FALSE(line.measured) << line.id;
}

TEST_F(MeasuredTest, ARankOfADividedRunHasParts) {
  load("qwen15_sft.toml", {"trainer.n_gpus_per_node=4", "trainer.nnodes=1", "parallel.zero_stage=2",
                           "data.micro_batch_size_per_gpu=2"});
  run_.measured.tags = {{"actor.weights", 100}, {"actor.grads", 50}, {"actor.optimizer", 300}};
  run_.measured.temporaries = {{"train", 9}};
  run_.planned.tags = {{"actor.weights", 101}, {"actor.grads", 51}};
  const Sheet sheet = measured();
  EXPECT_EQ(sheet.find("rank.weights")->counted, 101);
  EXPECT_EQ(sheet.find("rank.gradients")->counted, 51);
  EXPECT_EQ(sheet.find("rank.optimizer")->counted, std::nullopt);
  EXPECT_EQ(sheet.find("rank.states")->counted, std::nullopt);
  EXPECT_NE(sheet.letters.find("d = 4, ZeRO-2"), std::string::npos) << sheet.letters;
  EXPECT_EQ(value(sheet, "rank.gradients"), 50);
  EXPECT_EQ(value(sheet, "rank.states"), 450);
  EXPECT_EQ(value(sheet, "rank.total"), 459);
  for (const char* id : {"actor.weights", "actor.gradients", "actor.states", "actor.transient"})
    EXPECT_EQ(value(sheet, id), -1) << id;
}

TEST_F(MeasuredTest, EachModelHasItsOwnDegrees) {
  load("qwen7b_grpo.toml",
       {"trainer.n_gpus_per_node=4", "trainer.nnodes=1", "actor_rollout_ref.actor.zero_stage=2",
        "actor_rollout_ref.ref.tensor_model_parallel_size=2",
        "actor_rollout_ref.ref.sequence_parallel=true"});
  run_.planned.tags = {{"actor.weights", 101},
                       {"actor.grads", 51},
                       {"actor.optimizer", 301},
                       {"reference.weights", 21},
                       {"reward.weights", 4}};
  run_.measured.tags = {{"actor.weights", 100},
                        {"actor.grads", 50},
                        {"actor.optimizer", 300},
                        {"reference.weights", 20},
                        {"reward.weights", 3}};
  run_.measured.temporaries = {{"train_actor", 9}};
  const Sheet sheet = measured();
  const double actor = sheet.find("actor.weights")->value;
  const double reference = sheet.find("reference.weights")->value;
  const double judge = sheet.find("reward.weights")->value;
  EXPECT_EQ(sheet.find("actor.rank_weights")->value, actor);
  EXPECT_EQ(sheet.find("actor.rank_gradients")->value, sheet.find("actor.gradients")->value / 4);
  EXPECT_EQ(sheet.find("actor.rank_gradients")->formula, "w N / d");
  EXPECT_EQ(sheet.find("reference.rank_weights")->value, reference / 2);
  EXPECT_EQ(sheet.find("reference.rank_weights")->formula, "w N / t");
  EXPECT_EQ(sheet.find("reward.rank_weights")->value, judge);
  EXPECT_EQ(sheet.find("reference.rank_gradients"), nullptr);
  EXPECT_EQ(sheet.find("rank.weights")->value, actor + reference / 2 + judge);
  EXPECT_NE(sheet.letters.find("t = 1, p = 1, d = 4, ZeRO-2\n"), std::string::npos);
  EXPECT_NE(sheet.letters.find("t = 2, p = 1, d = 2, ZeRO-0, sequence parallel\n"),
            std::string::npos)
      << sheet.letters;
  EXPECT_EQ(sheet.find("actor.rank_gradients")->counted, 51);
  EXPECT_EQ(sheet.find("rank.weights")->counted, 126);
  EXPECT_EQ(value(sheet, "actor.rank_states"), 450);
  EXPECT_EQ(value(sheet, "reference.rank_weights"), 20);
  EXPECT_EQ(value(sheet, "rank.weights"), 123);
  EXPECT_EQ(value(sheet, "rank.total"), 123 + 350 + 9);
  // The reward model is whole on each rank.
  EXPECT_EQ(value(sheet, "reward.weights"), 3);
  for (const char* id : {"actor.weights", "reference.weights", "actor.transient"})
    EXPECT_EQ(value(sheet, id), -1) << id;
}

TEST_F(MeasuredTest, AModelsBatchIsThatOfItsRanks) {
  load("qwen7b_grpo.toml", {"trainer.n_gpus_per_node=4", "trainer.nnodes=1"});
  const double all = sizes_.trained()->micro_batches;
  load("qwen7b_grpo.toml", {"trainer.n_gpus_per_node=4", "trainer.nnodes=1",
                            "actor_rollout_ref.actor.tensor_model_parallel_size=2"});
  EXPECT_EQ(sizes_.trained()->micro_batches, 2 * all);
}

TEST_F(MeasuredTest, AGenerationOfOtherDegreesIsNotTheFormulas) {
  load("qwen7b_grpo.toml");
  const std::optional<double> whole = sizes_.tag({spec::TagKind::kKeyValues});
  load("qwen7b_grpo.toml",
       {"trainer.n_gpus_per_node=2", "trainer.nnodes=1", "parallel.zero_stage=3",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2"});
  EXPECT_EQ(sizes_.tag({spec::TagKind::kKeyValues}), whole);
  run_.measured.tags = {{"actor.weights", 100}, {"rollout.kv", 50}};
  const Sheet sheet = measured();
  EXPECT_EQ(value(sheet, "rank.kv"), -1);
  EXPECT_EQ(value(sheet, "rank.generation"), -1);
}

TEST_F(MeasuredTest, WholeModelsAreCountedWithoutTheRunsPlan) {
  load("qwen15_sft.toml");
  run_.planned.tags = {{"actor.weights", 101}};
  EXPECT_EQ(measured().find("rank.weights")->counted, sizes_.tag({spec::TagKind::kWeights}));
}

TEST_F(MeasuredTest, TextAndJsonShowThem) {
  load("qwen15_sft.toml");
  EXPECT_EQ(to_text(measured(), Scale::kGib).find("measured"), std::string::npos);
  run_.measured.tags = {{"actor.weights", 3221225472}};
  const Sheet sheet = measured();
  const std::string text = to_text(sheet, Scale::kGib);
  EXPECT_NE(text.find("counted  measured  source"), std::string::npos) << text;
  EXPECT_NE(text.find("  3 GiB  "), std::string::npos) << text;
  EXPECT_NE(text.find("measured: by a run"), std::string::npos);
  const Json json = to_json(sheet);
  for (const Json& section : json["sections"]) {
    for (const Json& line : section["lines"]) {
      if (line["id"] == "actor.weights") {
        EXPECT_EQ(line["measured"]["value"], 3221225472);
        EXPECT_EQ(line["measured"]["source"], "memory.ntrace: actor.weights");
      } else if (line["id"] != "rank.weights") {
        EXPECT_TRUE(line["measured"].is_null()) << line["id"];
      }
    }
  }
}

}  // namespace
}  // namespace neap::formulas
