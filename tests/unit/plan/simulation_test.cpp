// A simulated step against what can be computed by hand of its stages.
#include "plan/search/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "plan/rates/gpu_catalog.h"
#include "plan/results/network.h"
#include "simulations.h"

namespace neap::plan {
namespace {

using spec::Axis;

// OPT-350m: the first and the last stage exchange the gradients of a table that is narrower than hidden states.
TEST_F(Simulations, AnExchangedTableHasTheWidthOfItsEmbedding) {
  const auto transfers = [&](const char* width, const char* tied) {
    std::ofstream(folder_ / "config.json")
        << R"({"model_type": "opt", "vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096,
 "num_hidden_layers": 8, "num_attention_heads": 16, "max_position_embeddings": 2048, "do_layer_norm_before": false,
 "word_embed_proj_dim": )"
        << width << R"(, "tie_word_embeddings": )" << tied << "}";
    return run(1, stages(2)).plans.stages.front().plan.phases.front().transfer_seconds;
  };
  const auto table = [&](const char* width) {
    return transfers(width, "true") - transfers(width, "false");
  };
  const spec::Job job = this->job(1, stages(2));
  const Network network = network_of(job, default_network(true));
  const double start = 2 * transfer_seconds(network, job.mesh(), 1, 0);
  const double narrow = table("512") - start;
  EXPECT_GT(narrow, 0);
  EXPECT_NEAR(table("1024") - start, 2 * narrow, 1e-9);
}

TEST_F(Simulations, SharesAddUpToTheStep) {
  std::vector<std::string> keys = {"parallel.pipeline_model_parallel_size=2",
                                   "parallel.tensor_model_parallel_size=2", "trainer.nnodes=4",
                                   "trainer.n_gpus_per_node=4", "parallel.zero_stage=1"};
  for (int staged = 0; staged < 2; ++staged) {
    if (staged == 0) keys.front() = "parallel.pipeline_model_parallel_size=1";
    if (staged == 1) keys.front() = "parallel.pipeline_model_parallel_size=2";
    const Simulation s = run(64, keys);
    EXPECT_NEAR(s.shares.sum(), s.seconds, 1e-9 * s.seconds);
    for (const SimulatedStage& stage : s.stages)
      EXPECT_NEAR(stage.step.sum(), s.seconds, 1e-9 * s.seconds);
    EXPECT_GT(s.shares.axes[kTensor], 0);
    EXPECT_GT(s.shares.axes[kData], 0);
    EXPECT_EQ(s.shares.axes[kPipe] > 0, staged == 1);
    EXPECT_EQ(s.shares.bubble > 0, staged == 1);
  }
}

TEST_F(Simulations, RanksThatDivideSequencesDivideTheWork) {
  const auto divided = [&](std::int64_t ranks) {
    return run(8, {"data.use_dynamic_bsz=true", "data.max_response_length=4095",
                   "data.max_token_len_per_gpu=" + std::to_string(4096 / ranks),
                   "parallel.context_parallel_size=" + std::to_string(ranks),
                   "trainer.n_gpus_per_node=" + std::to_string(ranks)});
  };
  constexpr auto kContext = static_cast<std::size_t>(Axis::kContext);
  const Simulation two = divided(2), four = divided(4);
  for (const Simulation* s : {&two, &four}) {
    EXPECT_NEAR(s->shares.sum(), s->seconds, 1e-9 * s->seconds);
    EXPECT_GT(s->shares.axes[kContext], 0);
    EXPECT_GT(s->shares.axes[kData], 0) << "sums of gradients";
    EXPECT_EQ(s->stages.front().ranks, s->mesh.ranks());
    EXPECT_EQ(s->tokens, 8 * 4096);
    EXPECT_THAT(s->to_text(), ::testing::HasSubstr("context"));
    EXPECT_THAT(s->to_text(), ::testing::HasSubstr("data"));
  }
  // All ranks together compute about as much. Their seconds are those of issuing operations: the model is small.
  EXPECT_NEAR(four.flops / two.flops, 1, 0.02);
  EXPECT_LT(four.plans.stages[0].plan.peak, two.plans.stages[0].plan.peak);
}

TEST_F(Simulations, BackwardHidesSumsOfGradientsUnlessItHasCollectives) {
  const auto visible = [&](const std::string& divided) {
    const Simulation s =
        run(8, {"data.use_dynamic_bsz=true", "data.max_response_length=4095",
                "data.max_token_len_per_gpu=4096", "trainer.n_gpus_per_node=2", divided});
    return s.shares.axes[kData];
  };
  // float32 gradients of 8 blocks of 4 + 12 matrices of 1024 x 1024 and two tables of 512 x 1024, once each way.
  const double sums = 4.0 * (8 * 16 + 1) * 1024 * 1024 / default_network(true).within.bytes;
  EXPECT_LT(visible("parallel.context_parallel_size=1"), 0.7 * sums);
  EXPECT_GE(visible("parallel.context_parallel_size=2"), sums);
}

// Of weights, of which two ranks have half each, and which passes have other collectives besides.
TEST_F(Simulations, GathersBesideOtherCollectivesAreHiddenByCopyEnginesOnly) {
  const auto visible = [&](const std::string& divided, const char* gpus, const char* transport) {
    const Simulation s = run(8, {"data.use_dynamic_bsz=true", "data.max_response_length=4095",
                                 "data.max_token_len_per_gpu=4096", "parallel.zero_stage=3",
                                 divided, std::string("trainer.n_gpus_per_node=") + gpus,
                                 std::string("parallel.transport=") + transport});
    return s.shares.axes[kData];
  };
  // Each rank's part comes twice in bfloat16, and its float32 gradients leave once.
  const double part = (8 * 16 + 1) * 1024.0 * 1024 / default_network(true).within.bytes / 2;
  const double gathers = 2 * part, sums = 2 * part;
  const double engines = visible("parallel.tensor_model_parallel_size=2", "4", "auto");
  const double nccl = visible("parallel.tensor_model_parallel_size=2", "4", "nccl");
  EXPECT_GE(nccl, gathers + sums);
  EXPECT_GE(engines, sums);
  EXPECT_LT(engines, nccl - 0.7 * gathers);
  for (const char* transport : {"auto", "nccl"})
    EXPECT_GE(visible("parallel.context_parallel_size=2", "2", transport), 2 * (gathers + sums));
  // Without any the next unit comes while one computes, and sums are made while backward goes on.
  EXPECT_LT(visible("parallel.tensor_model_parallel_size=1", "2", "nccl"), gathers + sums);
}

TEST_F(Simulations, OneRankTakesWhatItsPlanSays) {
  const Simulation s = run(8, {});
  EXPECT_DOUBLE_EQ(s.seconds, s.plans.stages.front().plan.seconds());
  EXPECT_EQ(s.tokens, 8 * 1024);
  EXPECT_DOUBLE_EQ(s.shares.bubble, 0);
}

// Ranks that divide no stages wait for none, and a plan has the seconds of the simulation.
TEST_F(Simulations, SeveralRanksTakeWhatTheirPlanSays) {
  const std::vector<std::string> keys = {"trainer.n_gpus_per_node=2",
                                         "parallel.tensor_model_parallel_size=2"};
  const Target target = gpu_by_name("h100", {})->target;
  const Result<MemoryPlan> plan = make_plan(job(8, keys), target);
  ASSERT_TRUE(plan.ok());
  EXPECT_DOUBLE_EQ(run(8, keys).seconds, plan->seconds());
  EXPECT_DOUBLE_EQ(plan->stage_wait_seconds(), 0);
}

// With equal ranks added nothing changes but the collectives of the batch's ranks.
TEST_F(Simulations, EqualRanksAreSimulatedOnce) {
  const auto keys = [](std::int64_t nodes) {
    return std::vector<std::string>{
        "parallel.pipeline_model_parallel_size=2", "parallel.tensor_model_parallel_size=2",
        "trainer.n_gpus_per_node=4", "trainer.nnodes=" + std::to_string(nodes)};
  };
  const Simulation few = run(std::int64_t{4} * 8, keys(4)),
                   many = run(std::int64_t{1024} * 8, keys(1024));
  ASSERT_EQ(many.mesh.ranks(), 4096);
  ASSERT_EQ(few.stages.size(), many.stages.size());
  for (std::size_t i = 0; i < few.stages.size(); ++i) {
    EXPECT_DOUBLE_EQ(few.plans.forward[i], many.plans.forward[i]);
    EXPECT_DOUBLE_EQ(few.plans.backward[i], many.plans.backward[i]);
    EXPECT_EQ(few.plans.stages[i].plan.peak, many.plans.stages[i].plan.peak);
    EXPECT_DOUBLE_EQ(few.stages[i].step.axes[kTensor], many.stages[i].step.axes[kTensor]);
    EXPECT_LT(few.stages[i].step.axes[kData], many.stages[i].step.axes[kData]);
    EXPECT_EQ(many.stages[i].ranks, 2048);
  }
  EXPECT_GT(many.seconds, few.seconds);
  EXPECT_LT(many.tokens_per_second(), 256 * few.tokens_per_second());
}

// A search goes through plans that compute more again, with more sums, to the one that keeps everything.
TEST_F(Simulations, AChosenRetentionHasItsOwnCollectives) {
  std::vector<std::string> keys = {"parallel.tensor_model_parallel_size=2",
                                   "trainer.n_gpus_per_node=2"};
  const Simulation kept = run(8, keys);
  keys.emplace_back("actor_rollout_ref.model.activation_checkpointing=auto");
  const Simulation chosen = run(8, keys);
  keys.back() = "actor_rollout_ref.model.activation_checkpointing=full";
  const Simulation full = run(8, keys);
  EXPECT_GT(full.shares.axes[kTensor], 1.2 * kept.shares.axes[kTensor]);
  EXPECT_NEAR(chosen.shares.axes[kTensor], kept.shares.axes[kTensor], 1e-12);
  EXPECT_EQ(chosen.plans.stages[0].plan.phases[0].sent, kept.plans.stages[0].plan.phases[0].sent);
}

TEST_F(Simulations, SlowerConnectionsTakeLonger) {
  const std::vector<std::string> keys = {"parallel.tensor_model_parallel_size=2",
                                         "trainer.nnodes=2", "trainer.n_gpus_per_node=4"};
  const auto with = [&](const std::string& key) {
    std::vector<std::string> all = keys;
    all.push_back(key);
    return run(32, all);
  };
  const Simulation usual = run(32, keys);
  const Simulation pcie = with("parallel.intra_node_bandwidth=25GB");
  const Simulation ethernet = with("parallel.inter_node_bandwidth=1GB");
  // Small sums wait for their start as well.
  EXPECT_GT(pcie.shares.axes[kTensor], 2 * usual.shares.axes[kTensor]);
  EXPECT_LT(pcie.shares.axes[kTensor], 10 * usual.shares.axes[kTensor]);
  EXPECT_DOUBLE_EQ(ethernet.shares.axes[kTensor], usual.shares.axes[kTensor]);
  EXPECT_GT(ethernet.shares.axes[kData], 10 * usual.shares.axes[kData]);
}

TEST_F(Simulations, LayoutsThatDoNotFitAreRefused) {
  const auto refusal = [&](const std::string& layout) {
    spec::Job out =
        job(4, {"parallel.pipeline_model_parallel_size=2",
                "parallel.pipeline_model_parallel_layout=" + layout, "trainer.n_gpus_per_node=2"});
    const Result<Simulation> simulated = simulate(out, gpu_by_name("h100", {})->target);
    return simulated.ok() ? std::string() : simulated.status().message();
  };
  EXPECT_NE(refusal("[3,4]").find("has 2 stages with 7 blocks; the actor model has 8 blocks for 2"),
            std::string::npos)
      << refusal("[3,4]");
  EXPECT_NE(refusal("[2,3,3]").find("has 3 stages with 8 blocks"), std::string::npos);
  EXPECT_EQ(refusal("[3,5]"), "");
}

TEST_F(Simulations, JsonHasEveryKeyOfTheDocumentation) {
  const Json json = run(8, stages(4)).to_json();
  const std::set<std::string> expected = {"schema",
                                          "ranks",
                                          "mesh",
                                          "node_ranks",
                                          "micro_batches",
                                          "sequences",
                                          "tokens",
                                          "step_seconds",
                                          "seconds",
                                          "binds",
                                          "tokens_per_second",
                                          "flops_per_rank",
                                          "stages",
                                          "peak",
                                          "fits",
                                          "capacity",
                                          "chunks",
                                          "zero_bubble"};
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  EXPECT_EQ(keys, expected);
  ASSERT_EQ(json["stages"].size(), 4U);
  double sum = 0;
  for (const auto& [name, seconds] : json["seconds"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, json["step_seconds"].get<double>(), 1e-9);
  EXPECT_EQ(json["stages"][1]["first_block"], 2);
}

TEST(GpuCatalog, NamesAreCheckedAndMemoryIsTheGpus) {
  const Result<DeviceChoice> unknown = gpu_by_name("h1000", {});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("a100"), std::string::npos);
  const Bytes all = find_card("a100")->free - kCudaContext;
  EXPECT_EQ(gpu_by_name("a100", {})->target.capacity, all);
  EXPECT_EQ(gpu_by_name("a100", 40_GiB)->target.capacity, 40_GiB);
  EXPECT_EQ(gpu_by_name("a100", 140_GiB)->target.capacity, all);
  // As much of 312 TFLOP/s as of an H200's 989.
  EXPECT_NEAR(gpu_by_name("a100", {})->target.rates.half_flops, 775e12 * 312 / 989, 1e9);
}

}  // namespace
}  // namespace neap::plan
