// A simulated step against what can be computed by hand of its stages.
#include "plan/search/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "plan/rates/gpu_catalog.h"
#include "plan/results/network.h"

namespace neap::plan {
namespace {

using spec::Axis;

constexpr auto kData = static_cast<std::size_t>(Axis::kData);
constexpr auto kPipe = static_cast<std::size_t>(Axis::kPipe);
constexpr auto kTensor = static_cast<std::size_t>(Axis::kTensor);

// A model of 8 blocks; its vocabulary is small, so that stages of as many blocks are about equal.
class Simulations : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("neap_simulated_model-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json")
        << R"({"model_type": "llama", "vocab_size": 512, "hidden_size": 1024, "intermediate_size": 4096,
 "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096,
 "tie_word_embeddings": false})";
  }

  [[nodiscard]] spec::Job job(std::int64_t rows, const std::vector<std::string>& keys) const {
    std::vector<std::string> all = {"task=sft",
                                    "actor_rollout_ref.model.path=" + folder_.string(),
                                    "actor_rollout_ref.model.activation_checkpointing=none",
                                    "data.use_dynamic_bsz=false",
                                    "data.train_batch_size=" + std::to_string(rows),
                                    "data.micro_batch_size_per_gpu=1",
                                    "data.max_prompt_length=1",
                                    "data.max_response_length=1023"};
    all.insert(all.end(), keys.begin(), keys.end());
    spec::Job out;
    const Status status = spec::Job::load({}, all, out);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  [[nodiscard]] Simulation run(std::int64_t rows, const std::vector<std::string>& keys) const {
    Result<Simulation> out = simulate(job(rows, keys), gpu_by_name("h100", {})->target);
    EXPECT_TRUE(out.ok()) << out.status().message();
    return *std::move(out);
  }
  [[nodiscard]] static std::vector<std::string> stages(std::int64_t p, std::int64_t chunks = 1) {
    const std::string each = std::to_string(8 / (p * chunks));
    std::string layout = each;
    for (std::int64_t part = 1; part < p * chunks; ++part) layout += "," + each;
    return {"parallel.pipeline_model_parallel_size=" + std::to_string(p),
            "parallel.virtual_pipeline_model_parallel_size=" + std::to_string(chunks),
            "parallel.pipeline_model_parallel_layout=[" + layout + "]",
            "trainer.n_gpus_per_node=" + std::to_string(p)};
  }

  std::filesystem::path folder_;
};

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}
double longest_update(const Simulation& s) {
  double out = 0;
  for (const StagePlan& stage : s.plans.stages) {
    const PhasePlan& phase = stage.plan.phases.front();
    const double waits = phase.transfer_seconds + phase.bubble_seconds;
    out = std::max(out, phase.seconds - waits - sum(phase.passes.forward) -
                            sum(phase.passes.backward) - sum(phase.passes.weights) -
                            phase.passes.sums);
  }
  return out;
}
double longest_sums(const Simulation& s) {
  double out = 0;
  for (const StagePlan& stage : s.plans.stages)
    out = std::max(out, stage.plan.phases.front().passes.sums);
  return out;
}

TEST_F(Simulations, OneMicroBatchGoesThroughAllStagesAndBack) {
  for (const auto& [p, chunks] : {std::pair{2, 1}, {4, 1}, {2, 4}, {4, 2}}) {
    const Simulation s = run(1, stages(p, chunks));
    double by_hand = 0;
    for (std::size_t i = 0; i < s.stages.size(); ++i)
      by_hand += s.plans.forward[i] + s.plans.backward[i];
    const Network network = network_of(job(1, stages(p)), default_network(true));
    // bfloat16 hidden states of 1024 tokens, there and back over each boundary.
    by_hand += 2 * static_cast<double>(p * chunks - 1) *
               transfer_seconds(network, s.mesh, 0, 1024 * 1024 * 2);
    const double last = by_hand + longest_update(s);
    EXPECT_GE(s.seconds, last * (1 - 1e-9));
    EXPECT_LE(s.seconds, (last + longest_sums(s)) * (1 + 1e-9));
    EXPECT_EQ(s.micro_batches, 1);
  }
}

TEST_F(Simulations, TheBubbleOfEqualStagesIsTheTextbooks) {
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t m : {4, 16, 64}) {
      const Simulation s = run(m, stages(p));
      // The slowest stage is never idle but in the bubble and in transfers.
      double slowest = 0;
      for (std::size_t i = 0; i < s.stages.size(); ++i)
        slowest = std::max(slowest, s.plans.forward[i] + s.plans.backward[i]);
      const double rest = longest_update(s) + longest_sums(s);
      const double ideal = slowest * static_cast<double>(m + p - 1);
      double transfers = 0;
      for (const SimulatedStage& stage : s.stages)
        transfers = std::max(transfers, stage.step.axes[kPipe]);
      EXPECT_LE(s.seconds, (ideal + rest + 2 * transfers) * 1.001) << p << " " << m;
      // The head makes the last stage a little slower than the others.
      EXPECT_GE(s.seconds, 0.93 * ideal) << p << " " << m;
      EXPECT_NEAR(s.plans.bubble(), static_cast<double>(p - 1) / static_cast<double>(m), 1e-12);
    }
  }
}

// F, B and W by hand: stages of as many blocks wait (p - 1) (F + B - W).
TEST_F(Simulations, ABackwardInTwoPartsFillsTheBubble) {
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t m : {8, 32}) {
      std::vector<std::string> keys = stages(p);
      // Launches take longer than these kernels. With fewer, both take about as long, and a pass is counted by the
      // slower one of all so far.
      keys.emplace_back("device.kernels=libtorch");
      const Simulation one = run(m, keys);
      keys.emplace_back("parallel.pipeline_parallel_schedule=zero_bubble");
      const Simulation s = run(m, keys);
      const std::vector<double> whole = one.plans.backward;
      for (std::size_t i = 0; i < s.stages.size(); ++i) {
        const PassSeconds& passes = s.plans.stages[i].plan.phases.front().passes;
        EXPECT_NEAR(s.plans.forward[i], one.plans.forward[i], 1e-9 * one.plans.forward[i]) << i;
        // The same operations, but that the gradient of the up projection has memory of its own.
        EXPECT_NEAR(s.plans.backward[i], whole[i], 1e-3 * whole[i]) << i;
        EXPECT_EQ(passes.weights.empty(), i == 0) << i;
        // Half of the blocks' products; operations between them, and the head's, are the input's.
        if (i > 0) {
          const bool last = i + 1 == s.stages.size();
          EXPECT_GT(sum(passes.weights), (last ? 0.1 : 0.2) * sum(passes.backward)) << i;
          EXPECT_LT(sum(passes.weights), sum(passes.backward)) << i;
        }
      }
      const double weights =
          sum(s.plans.stages[1].plan.phases.front().passes.weights) / static_cast<double>(m);
      const double saved = one.seconds - s.seconds;
      EXPECT_NEAR(saved, 2 * static_cast<double>(p - 1) * weights, 0.1 * saved) << p << " " << m;
      EXPECT_LT(s.shares.bubble, one.shares.bubble) << p << " " << m;
      EXPECT_NEAR(s.shares.sum(), s.seconds, 1e-9 * s.seconds);
      EXPECT_NEAR(s.plans.bubble(), one.plans.bubble() / 3, 1e-12);
      // The first stage's backward is in one part.
      EXPECT_EQ(s.plans.stages[0].plan.peak, one.plans.stages[0].plan.peak);
      EXPECT_GT(s.plans.stages[1].plan.peak, one.plans.stages[1].plan.peak);
    }
  }
}

// The slowest stage is idle by (p - 1) / (m v), where its chunks are alike.
TEST_F(Simulations, ChunksDivideTheBubble) {
  for (const auto& [p, chunks] : {std::pair{2, 2}, {2, 4}, {4, 2}}) {
    for (const std::int64_t m : {8, 32}) {
      const Simulation one = run(m, stages(p)), s = run(m, stages(p, chunks));
      const auto slowest = [&](const Simulation& of) {
        double out = 0;
        for (std::size_t i = 0; i < of.stages.size(); ++i)
          out = std::max(out, of.plans.forward[i] + of.plans.backward[i]);
        return out;
      };
      // Each chunk copies its tokens and makes its rotations.
      EXPECT_GE(slowest(s), slowest(one));
      EXPECT_LE(slowest(s), 1.1 * slowest(one));
      double transfers = 0;
      for (const SimulatedStage& stage : s.stages)
        transfers = std::max(transfers, stage.step.axes[kPipe]);
      const double rest = longest_update(s) + longest_sums(s);
      const auto ideal =
          slowest(s) * (static_cast<double>(m) + static_cast<double>(p - 1) / chunks);
      EXPECT_LE(s.seconds, (ideal + rest + 2 * transfers) * 1.01) << p << " " << chunks << " " << m;
      EXPECT_GE(s.seconds, 0.93 * ideal) << p << " " << chunks << " " << m;
      // Of many micro-batches the head, which one chunk has, makes stages wait for longer.
      if (m == 8) {
        EXPECT_LT(s.shares.bubble, one.shares.bubble);
      }
      EXPECT_GT(s.shares.axes[kPipe], one.shares.axes[kPipe]);
      EXPECT_NEAR(s.shares.sum(), s.seconds, 1e-9 * s.seconds);
      EXPECT_NEAR(s.plans.bubble(), one.plans.bubble() / chunks, 1e-12);
      // A stage keeps more of its first micro-batches.
      EXPECT_GT(s.plans.stages.front().plan.peak, one.plans.stages.front().plan.peak);
    }
  }
}

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

TEST_F(Simulations, PlansOfStagesHaveTheSecondsOfTheStep) {
  std::vector<std::string> keys = stages(4);
  // One ends its moves later than the others: parts of an update are phases, and states come and go.
  for (const char* update :
       {"memory.optimizer_offload=none", "memory.optimizer_offload=phase_split"}) {
    keys.emplace_back(update);
    const Simulation s = run(8, keys);
    const Result<StagePlans> plans = plan_stages(job(8, keys), gpu_by_name("h100", {})->target);
    ASSERT_TRUE(plans.ok());
    EXPECT_DOUBLE_EQ(plans->seconds(), s.seconds);
    for (const StagePlan& stage : plans->stages) {
      EXPECT_NEAR(stage.plan.operation_seconds(), s.seconds, 1e-9 * s.seconds);
      EXPECT_GT(stage.plan.stage_wait_seconds(), 0);
      // They compute for a quarter as long, but for the bubble.
      EXPECT_LT(stage.plan.stage_wait_seconds(), 0.6 * s.seconds);
    }
    keys.pop_back();
  }
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
