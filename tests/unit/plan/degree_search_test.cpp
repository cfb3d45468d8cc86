// Which degrees a plan takes, against every job with its degrees written out.
#include "plan/search/degree_search.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "plan/rates/gpu_catalog.h"
#include "plan/search/simulation.h"
#include "plan/search/stage_plans.h"

namespace neap::plan {
namespace {

class DegreeSearch : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("neap_divided_model-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json")
        << R"({"model_type": "llama", "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 4096,
 "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 262144,
 "tie_word_embeddings": false})";
    target_ = gpu_by_name("h100", {})->target;
  }
  [[nodiscard]] OpenJob open(std::int64_t ranks, const std::vector<std::string>& keys) const {
    OpenJob out;
    out.overrides = {"task=sft",
                     "actor_rollout_ref.model.path=" + folder_.string(),
                     "data.use_dynamic_bsz=false",
                     "data.train_batch_size=16",
                     "data.micro_batch_size_per_gpu=1",
                     "data.max_prompt_length=1",
                     "data.max_response_length=1023",
                     "trainer.n_gpus_per_node=" + std::to_string(ranks)};
    out.overrides.insert(out.overrides.end(), keys.begin(), keys.end());
    const Status status = spec::Job::load({}, out.overrides, out.job, spec::OpenDegrees::kAuto);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  static inline const std::vector<std::string> kAll = {
      "parallel.pipeline_model_parallel_size=auto", "parallel.tensor_model_parallel_size=auto",
      "parallel.context_parallel_size=auto", "parallel.zero_stage=auto"};
  std::filesystem::path folder_;
  Target target_;
};

// The simulations of all jobs, one after another, say the same.
TEST_F(DegreeSearch, TakesTheFastestThatFits) {
  std::vector<std::string> packed = kAll;
  packed.insert(packed.end(), {"data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=2048"});
  for (const auto& [ranks, keys] : {std::pair<std::int64_t, std::vector<std::string>>{1, kAll},
                                    {2, kAll},
                                    {4, packed},
                                    {8, kAll}}) {
    for (const Bytes capacity : {Bytes(), 2_GiB, 1_GiB}) {
      target_.capacity = capacity;
      const OpenJob job = open(ranks, keys);
      const DegreeChoice choice = choose_degrees(job, target_);
      double fastest = std::numeric_limits<double>::infinity();
      std::size_t fitting = 0, refused = 0;
      for (const spec::Degrees& degrees : spec::possible_degrees(job.job)) {
        std::vector<std::string> words = job.overrides;
        for (const std::string& word : spec::assignments(job.job, degrees)) words.push_back(word);
        spec::Job written;
        if (!spec::Job::load({}, words, written).ok()) {
          ++refused;
          continue;
        }
        const Result<Simulation> step = simulate(written, target_);
        if (!step.ok()) {
          refused += step.status().code() == ErrorCode::kDoesNotFit ? 0U : 1U;
          continue;
        }
        ++fitting;
        fastest = std::min(fastest, step->seconds);
      }
      std::size_t found = 0, cannot = 0;
      for (const DegreeCandidate& candidate : choice.candidates) {
        found += candidate.fits ? 1U : 0U;
        cannot += candidate.refused.empty() ? 0U : 1U;
      }
      EXPECT_EQ(found, fitting) << ranks << " " << capacity.count();
      EXPECT_EQ(cannot, refused) << ranks << " " << capacity.count();
      ASSERT_EQ(choice.fits(), fitting > 0) << ranks << " " << capacity.count();
      if (!choice.fits()) continue;
      EXPECT_NEAR(choice.candidates.front().seconds, fastest, 1e-9 * fastest);
      if (!capacity.is_zero()) {
        EXPECT_LE(choice.candidates.front().peak, capacity);
      }
    }
  }
}

TEST_F(DegreeSearch, IsTheSameTwice) {
  const OpenJob job = open(8, kAll);
  const Json first = choose_degrees(job, target_).to_json();
  EXPECT_EQ(first, choose_degrees(job, target_).to_json());
}

TEST_F(DegreeSearch, KeysThatAreSetStay) {
  const DegreeChoice choice = choose_degrees(
      open(8, {"parallel.tensor_model_parallel_size=2", "parallel.zero_stage=auto"}), target_);
  ASSERT_EQ(choice.candidates.size(), 4U);
  for (const DegreeCandidate& candidate : choice.candidates) {
    EXPECT_EQ(candidate.degrees[0], 1);
    EXPECT_EQ(candidate.degrees[1], 2);
    EXPECT_EQ(candidate.data_ranks, 4);
    EXPECT_EQ(candidate.refused, "");
  }
  ASSERT_EQ(choice.overrides.size(), 1U);
  EXPECT_EQ(choice.overrides[0].find("parallel.zero_stage="), 0U);
}

// Between machines that a slow network joins gathers take longer than within them, and replicas take more memory.
TEST_F(DegreeSearch, SlicesOverAMachineWhereThatSavesTimeAndFits) {
  const std::vector<std::string> keys = {
      "parallel.zero_stage=3",    "parallel.zero_shard_size=auto",
      "trainer.nnodes=2",         "parallel.intra_node_bandwidth=100GB",
      "data.train_batch_size=16", "parallel.inter_node_bandwidth=100MB"};
  const auto choose = [&] { return choose_degrees(open(4, keys), target_); };
  const DegreeChoice roomy = choose();
  ASSERT_TRUE(roomy.fits());
  EXPECT_EQ(roomy.overrides, std::vector<std::string>{"parallel.zero_shard_size=4"});
  ASSERT_EQ(roomy.candidates.size(), 3U);  // of all, of two, of four
  const auto over_all =
      std::find_if(roomy.candidates.begin(), roomy.candidates.end(),
                   [](const DegreeCandidate& each) { return each.degrees[6] == 0; });
  ASSERT_NE(over_all, roomy.candidates.end());
  EXPECT_GT(over_all->seconds, 1.5 * roomy.candidates.front().seconds);
  // What slices over a machine need at least is more than slices over all.
  const auto least = [&](const char* shards) {
    spec::Job job;
    std::vector<std::string> words = open(4, keys).overrides;
    words.push_back(std::string("parallel.zero_shard_size=") + shards);
    EXPECT_TRUE(spec::Job::load({}, words, job).ok());
    Target tiny = target_;
    tiny.capacity = 1_MiB;
    const Result<StagesOrLeast> found = plan_stages_or_least(job, tiny);
    EXPECT_TRUE(found.ok());
    return found->least;
  };
  ASSERT_LT(least("0"), least("4"));
  target_.capacity = least("0") + 1_MiB;
  ASSERT_LT(target_.capacity, least("4"));
  const DegreeChoice tight = choose();
  ASSERT_TRUE(tight.fits());
  EXPECT_EQ(tight.overrides, std::vector<std::string>{"parallel.zero_shard_size=0"});
}

// Keys and values of all ranks take memory that a ring does not.
TEST_F(DegreeSearch, PassesKeysRoundWhereOnlyThatFits) {
  const std::vector<std::string> keys = {"parallel.context_parallel_size=8",
                                         "parallel.cp_comm_type=auto",
                                         "data.use_dynamic_bsz=true",
                                         "data.max_response_length=262143",
                                         "data.max_token_len_per_gpu=32768",
                                         "memory.allow=[\"recompute\"]",
                                         "actor_rollout_ref.model.activation_checkpointing=full"};
  const DegreeChoice roomy = choose_degrees(open(8, keys), target_);
  ASSERT_EQ(roomy.candidates.size(), 2U);
  ASSERT_TRUE(roomy.candidates[0].fits && roomy.candidates[1].fits);
  const bool ring_is_first = roomy.candidates[0].degrees[4] == 1;
  const DegreeCandidate& ring = roomy.candidates[ring_is_first ? 0 : 1];
  const DegreeCandidate& gathered = roomy.candidates[ring_is_first ? 1 : 0];
  ASSERT_EQ(ring.degrees[4], 1);
  ASSERT_EQ(gathered.degrees[4], 0);
  ASSERT_LT(ring.peak, gathered.peak);
  target_.capacity = ring.peak;
  const DegreeChoice tight = choose_degrees(open(8, keys), target_);
  ASSERT_TRUE(tight.fits());
  EXPECT_EQ(tight.overrides, std::vector<std::string>{"parallel.cp_comm_type=p2p"});
  EXPECT_FALSE(tight.candidates[1].fits);
}

// Of one micro-batch for each stage the bubble is large; what saves it keeps more.
TEST_F(DegreeSearch, ChunksOrZeroBubbleWhereTheyFit) {
  const std::vector<std::string> keys = {"parallel.pipeline_model_parallel_size=2",
                                         "parallel.virtual_pipeline_model_parallel_size=auto",
                                         "parallel.pipeline_parallel_schedule=auto",
                                         "data.train_batch_size=4",
                                         // With Neap's kernels the plans have one peak.
                                         "device.kernels=libtorch"};
  const DegreeChoice roomy = choose_degrees(open(2, keys), target_);
  ASSERT_TRUE(roomy.fits());
  ASSERT_EQ(roomy.candidates.size(), 4U);
  // 6 blocks have no 8 parts.
  EXPECT_EQ(roomy.candidates.back().degrees[7], 4);
  EXPECT_NE(roomy.candidates.back().refused.find("more than the 6 blocks"), std::string::npos);
  const auto of = [](const DegreeChoice& choice, std::int64_t chunks, std::int64_t zero_bubble) {
    return *std::find_if(choice.candidates.begin(), choice.candidates.end(), [&](const auto& each) {
      return each.degrees[7] == chunks && each.degrees[8] == zero_bubble;
    });
  };
  const DegreeCandidate plain = of(roomy, 1, 0), chunks = of(roomy, 2, 0), parts = of(roomy, 1, 1);
  ASSERT_TRUE(plain.fits && chunks.fits && parts.fits);
  EXPECT_LT(parts.seconds, plain.seconds);
  EXPECT_LT(chunks.seconds, plain.seconds);
  EXPECT_EQ(roomy.candidates.front().seconds, std::min(parts.seconds, chunks.seconds));
  ASSERT_LT(plain.peak, std::min(parts.peak, chunks.peak));
  // Nothing is computed again.
  std::vector<std::string> whole = keys;
  whole.insert(whole.end(),
               {"memory.allow=[]", "memory.offload=none", "memory.optimizer_offload=none"});
  target_.capacity = plain.peak;
  const DegreeChoice tight = choose_degrees(open(2, whole), target_);
  ASSERT_TRUE(tight.fits());
  EXPECT_EQ(tight.overrides,
            (std::vector<std::string>{"parallel.virtual_pipeline_model_parallel_size=1",
                                      "parallel.pipeline_parallel_schedule=1f1b"}));
}

// A sequence that is longer than the tokens of a rank's micro-batch is one for several ranks.
TEST_F(DegreeSearch, DividesASequenceThatDoesNotFitOtherwise) {
  std::vector<std::string> keys = kAll;
  keys.insert(keys.end(), {"data.use_dynamic_bsz=true", "data.max_response_length=16383",
                           "data.max_token_len_per_gpu=4096"});
  const auto choose = [&](const char* context) {
    std::vector<std::string> words = keys;
    words.push_back(std::string("parallel.context_parallel_size=") + context);
    return choose_degrees(open(4, words), target_);
  };
  const DegreeChoice without = choose("1");
  EXPECT_NE(without.refusal().message().find("data.max_token_len_per_gpu is 4096; it has to be"),
            std::string::npos)
      << without.refusal().message();
  const DegreeChoice choice = choose("auto");
  ASSERT_TRUE(choice.fits()) << choice.to_text();
  for (const DegreeCandidate& candidate : choice.candidates)
    EXPECT_EQ(candidate.refused.empty(), candidate.degrees[3] == 4);
}

// The checks of a job refuse ranks that divide sequences where it generates or pads.
TEST_F(DegreeSearch, SequencesAreDividedOnlyWhereTheyArePacked) {
  const DegreeChoice choice =
      choose_degrees(open(2, {"parallel.context_parallel_size=auto"}), target_);
  ASSERT_EQ(choice.candidates.size(), 2U);
  EXPECT_EQ(choice.candidates.back().degrees[3], 2);
  EXPECT_NE(choice.candidates.back().refused.find(
                "parallel.context_parallel_size 2 does not go with data.use_dynamic_bsz = false"),
            std::string::npos)
      << choice.candidates.back().refused;
  EXPECT_EQ(choice.overrides, std::vector<std::string>{"parallel.context_parallel_size=1"});
}

// Candidates are ranked without what only a run asks for.
TEST_F(DegreeSearch, APlanForARunSaysThatThePoolOfItsOnePhaseStays) {
  const auto kept = [&](const Result<MemoryPlan>& plan) {
    return plan.ok() && !plan->phases.front().pool_for.empty();
  };
  EXPECT_TRUE(kept(make_plan(open(1, {}).job, target_)));
  EXPECT_FALSE(kept(make_plan(open(1, {"memory.optimizer_offload=phase_split"}).job, target_)));
}

TEST_F(DegreeSearch, WhereNothingFitsItSaysWhatCameNearest) {
  target_.capacity = 1500_MiB;
  std::vector<std::string> keys = kAll;
  keys.insert(keys.end(), {"memory.allow=[]", "parallel.tensor_model_parallel_size=1"});
  const DegreeChoice choice = choose_degrees(open(2, keys), target_);
  EXPECT_FALSE(choice.fits());
  EXPECT_TRUE(choice.overrides.empty());
  const Status why = choice.refusal();
  EXPECT_EQ(why.code(), ErrorCode::kDoesNotFit);
  EXPECT_NE(why.message().find("None of the 5 parallel configurations for 2 ranks fits into"),
            std::string::npos)
      << why.message();
  const DegreeCandidate& nearest = choice.candidates.front();
  for (const DegreeCandidate& candidate : choice.candidates)
    EXPECT_TRUE(!candidate.refused.empty() || candidate.peak >= nearest.peak);
  // With that much it fits.
  target_.capacity = nearest.peak;
  EXPECT_TRUE(choose_degrees(open(2, keys), target_).fits());
  target_.capacity = nearest.peak - 1_MiB;
  EXPECT_FALSE(choose_degrees(open(2, keys), target_).fits());
}

TEST_F(DegreeSearch, AModelThatGoesWithNoWayIsRefusedWithTheReason) {
  const DegreeChoice choice =
      choose_degrees(open(2, {"parallel.zero_stage=auto", "data.train_batch_size=3"}), target_);
  EXPECT_EQ(choice.refusal().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(choice.refusal().message().find("train_batch_size"), std::string::npos)
      << choice.refusal().message();
}

TEST_F(DegreeSearch, ATableHasWhatFitsWhatDoesNotAndWhatCannotBe) {
  target_.capacity = 2_GiB;
  const DegreeChoice choice = choose_degrees(open(8, kAll), target_);
  const std::string text = choice.to_text();
  EXPECT_NE(text.find("Parallel configurations for 8 ranks: "), std::string::npos);
  EXPECT_NE(text.find("pipe  tensor  sequence_parallel  context  ring_attention  zero  "
                      "zero_shard_size  chunks  zero_bubble  data"),
            std::string::npos);
  EXPECT_NE(text.find("does not fit"), std::string::npos) << text;
  EXPECT_NE(text.find("pipe 8, tensor 1, sequence_parallel 0, context 1, ring_attention 0, zero 0, "
                      "zero_shard_size 0, chunks 1, "
                      "zero_bubble 0: pipeline_model_parallel_size 8 is more than the 6 blocks"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Chosen: parallel.pipeline_model_parallel_size="), std::string::npos);
  // 6 blocks have no 8 stages.
  for (const DegreeCandidate& candidate : choice.candidates)
    EXPECT_EQ(candidate.refused.find("more than the 6 blocks") != std::string::npos,
              candidate.degrees[0] == 8);
}

}  // namespace
}  // namespace neap::plan
