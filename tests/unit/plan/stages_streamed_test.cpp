// What stages of a pipeline and whole models beside them bring from the host.
#include "plan/search/stage_plans.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "plan/rates/gpu_catalog.h"
#include "plan/results/plan_words.h"
#include "plan/search/model_choice.h"

namespace neap::plan {
namespace {

using spec::ModelId;

constexpr Bytes kRoomy = 64_GiB;

// A model of 4 blocks, one of 12, and two of 6 with a large vocabulary, one of which has one table for embedding and head.
class StreamedStages : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("neap_streamed_stages-" + std::to_string(::getpid()));
    write_model("small", 4, 512, "false");
    write_model("deep", 12, 512, "false");
    write_model("tables", 6, 65536, "false");
    write_model("tied", 6, 65536, "true");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] spec::Job job(std::vector<std::string> keys) const {
    std::vector<std::string> all = {"data.use_dynamic_bsz=false",
                                    "data.train_batch_size=16",
                                    "data.micro_batch_size_per_gpu=2",
                                    "data.max_prompt_length=1",
                                    "data.max_response_length=127",
                                    "trainer.n_gpus_per_node=2",
                                    "actor_rollout_ref.model.path=" + path("small"),
                                    "parallel.pipeline_model_parallel_size=2"};
    all.insert(all.end(), keys.begin(), keys.end());
    spec::Job out;
    const Status status = spec::Job::load({}, all, out);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  void write_model(const char* name, int blocks, int vocabulary, const char* ties) const {
    std::filesystem::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "config.json")
        << R"({"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
 "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096, "num_hidden_layers": )"
        << blocks << R"(, "vocab_size": )" << vocabulary << R"(, "tie_word_embeddings": )" << ties
        << "}";
  }
  [[nodiscard]] std::string path(const std::string& model) const {
    return (folder_ / model).string();
  }
  [[nodiscard]] static Result<StagePlans> plans(const spec::Job& job, Bytes capacity) {
    Target target = gpu_by_name("h100", {})->target;
    target.capacity = capacity;
    return plan_stages(job, target);
  }
  // In steps of a MiB, of all kinds of ranks.
  [[nodiscard]] static Bytes least(const spec::Job& job) {
    Bytes low = 1_MiB, high = kRoomy;
    while (high - low > 1_MiB) {
      const Bytes middle = low + (high - low) / 2;
      (plans(job, middle).ok() ? high : low) = middle;
    }
    return high;
  }
  [[nodiscard]] static spec::Job without_streams(spec::Job job) {
    std::erase(job.memory.allow, spec::Measure::kStreamWeights);
    return job;
  }

  std::filesystem::path folder_;
};

TEST_F(StreamedStages, AWholeReferenceBesideAnActorInStagesIsStreamedWhereNothingElseFits) {
  const spec::Job job = this->job({"task=dpo", "actor_rollout_ref.ref.model.path=" + path("deep"),
                                   "actor_rollout_ref.ref.pipeline_model_parallel_size=1"});
  const Bytes streamed = least(job);
  EXPECT_LT(streamed, least(without_streams(job)));
  const Result<StagePlans> roomy = plans(job, kRoomy);
  ASSERT_TRUE(roomy.ok());
  for (const StagePlan& kind : roomy->stages)
    EXPECT_EQ(kind.plan.modes.of(ModelId::kReference).layers, spec::Home::kDevice);
  const Result<StagePlans> found = plans(job, streamed);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->stages.size(), 2u);
  for (const StagePlan& kind : found->stages) {
    EXPECT_EQ(kind.plan.modes.of(ModelId::kReference).layers, spec::Home::kHost);
    EXPECT_EQ(kind.plan.modes.of(ModelId::kActor).layers, spec::Home::kDevice);
    EXPECT_NE(sentence_of(kind.plan).find("weights of reference offloaded to the CPU"),
              std::string::npos);
    const PhasePlan& phase = kind.plan.phases.front();
    ASSERT_EQ(phase.id, spec::PhaseId::kReferenceLogProbs);
    EXPECT_GT(phase.fetched, Bytes());
    EXPECT_GT(phase.wait_seconds, 0);
  }
}

TEST_F(StreamedStages, FrozenBlocksOfAStageComeInTheOrderOfItsSchedule) {
  for (const auto& [schedule, chunks] :
       {std::pair("1f1b", 1), std::pair("1f1b", 2), std::pair("zero_bubble", 1)}) {
    const spec::Job job =
        this->job({"task=sft", "actor_rollout_ref.model.path=" + path("deep"),
                   "actor_rollout_ref.model.lora_rank=8",
                   std::string("parallel.pipeline_parallel_schedule=") + schedule,
                   "parallel.virtual_pipeline_model_parallel_size=" + std::to_string(chunks)});
    const Bytes streamed = least(job);
    EXPECT_LT(streamed, least(without_streams(job)));
    const Result<StagePlans> found = plans(job, streamed);
    ASSERT_TRUE(found.ok());
    int stages = 0;
    for (const StagePlan& stage : found->stages) {
      if (stage.plan.modes.of(ModelId::kActor).layers == spec::Home::kDevice) continue;
      ++stages;
      const TagPlan& slots =
          *std::find_if(stage.plan.tags.begin(), stage.plan.tags.end(), [](const TagPlan& tag) {
            return tag.id == spec::TagId{spec::TagKind::kBuffers, ModelId::kActor};
          });
      EXPECT_EQ(slots.hosted.blocks.size(), 6u);
      // 8 micro-batches forward and back: at most each block each time; of what a pass left two at most are found.
      const Bytes block = slots.hosted.blocks.front().bytes;
      const PhasePlan& phase = stage.plan.phases.front();
      constexpr std::uint64_t kPasses = 16;
      EXPECT_LE(phase.fetched, block * kPasses * 6 + block * kPasses);
      EXPECT_GE(phase.fetched, block * kPasses * (6 - 2 * static_cast<std::uint64_t>(chunks)));
      EXPECT_GT(phase.wait_seconds, 0);
      double forward = 0;
      for (const double seconds : phase.passes.forward) forward += seconds;
      EXPECT_GT(forward, 0);
    }
    EXPECT_GT(stages, 0);
  }
}

// Each unit is gathered once for them.
TEST_F(StreamedStages, RanksThatSliceAWholeModelBesideStagesHaveTheSameGroupsOfMicroBatches) {
  const spec::Job job = this->job({"task=dpo", "actor_rollout_ref.model.path=" + path("deep"),
                                   "actor_rollout_ref.actor.pipeline_model_parallel_layout=[3,9]",
                                   "actor_rollout_ref.ref.model.path=" + path("deep"),
                                   "actor_rollout_ref.ref.pipeline_model_parallel_size=1",
                                   "actor_rollout_ref.ref.zero_stage=3"});
  for (const Bytes capacity : {least(job), kRoomy}) {
    const Result<StagePlans> found = plans(job, capacity);
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found->stages.size(), 2u);
    const std::int64_t together = found->stages[0].plan.modes.of(ModelId::kReference).together;
    EXPECT_EQ(found->stages[1].plan.modes.of(ModelId::kReference).together, together);
    if (capacity == kRoomy) {
      EXPECT_GT(together, 1);
    }
  }
}

TEST_F(StreamedStages, BlocksThatTrainAreStreamed) {
  const auto streams = [&](std::vector<std::string> keys) {
    keys.push_back("actor_rollout_ref.model.path=" + path("deep"));
    const spec::Job job = this->job(std::move(keys));
    return least(job) < least(without_streams(job));
  };
  EXPECT_TRUE(streams({"task=sft"}));
  EXPECT_TRUE(streams({"task=sft", "parallel.virtual_pipeline_model_parallel_size=2"}));
  EXPECT_TRUE(streams({"task=sft", "trainer.n_gpus_per_node=4", "parallel.zero_stage=3"}));
  EXPECT_TRUE(streams({"task=sft", "parallel.pipeline_parallel_schedule=zero_bubble"}));
  const std::vector<std::string> dpo = {"task=dpo", "trainer.n_gpus_per_node=4",
                                        "actor_rollout_ref.ref.model.path=" + path("small")};
  EXPECT_TRUE(streams(dpo));
}

// Two stages exchange the gradients of a table that both have.
TEST_F(StreamedStages, TablesThatTrainComeInTurnsWithTheBlocks) {
  for (const char* const model : {"tables", "tied"}) {
    SCOPED_TRACE(model);
    const spec::Job job = this->job({"task=sft", "actor_rollout_ref.model.path=" + path(model),
                                     "parallel.pipeline_model_parallel_layout=[3,3]"});
    const Result<StagePlans> found = plans(job, least(job));
    ASSERT_TRUE(found.ok());
    bool streams = false;
    for (const StagePlan& stage : found->stages)
      streams = streams || stage.plan.modes.of(ModelId::kActor).tables != spec::Home::kDevice;
    EXPECT_EQ(streams, model == std::string("tables"));
  }
}

// Stages of a reference that cut those of the actor, or the other way round: four kinds of ranks.
TEST_F(StreamedStages, KindsThatAddUpGradientsStreamTheirBlocksAlike) {
  for (const char* const keys : {"actor_rollout_ref.ref.pipeline_model_parallel_size=4",
                                 "actor_rollout_ref.actor.pipeline_model_parallel_size=1"}) {
    SCOPED_TRACE(keys);
    const spec::Job job = this->job({"task=dpo", "trainer.n_gpus_per_node=4",
                                     "actor_rollout_ref.model.path=" + path("deep"),
                                     "actor_rollout_ref.ref.model.path=" + path("small"), keys});
    const Bytes streamed = least(job);
    EXPECT_LT(streamed, least(without_streams(job)));
    const Result<StagePlans> found = plans(job, streamed);
    ASSERT_TRUE(found.ok());
    const std::int64_t pipe = job.mesh(ModelId::kActor).size(spec::Axis::kPipe);
    std::map<std::int64_t, ModelChoice> chosen;  // by stage of the actor
    bool streams = false;
    for (const StagePlan& kind : found->stages) {
      const ModelChoice choice = choice_of(kind.plan, ModelId::kActor);
      const std::int64_t stage = kind.ranks.first * pipe / job.ranks();
      EXPECT_EQ(chosen.try_emplace(stage, choice).first->second, choice) << "stage " << stage;
      streams = streams || choice.homes.layers != spec::Home::kDevice;
    }
    EXPECT_TRUE(streams);
    EXPECT_LT(std::ssize(chosen), std::ssize(found->stages));
  }
}

}  // namespace
}  // namespace neap::plan
