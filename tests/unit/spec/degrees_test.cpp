#include "spec/keys/degrees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace neap::spec {
namespace {

constexpr const char* kTensor = "parallel.tensor_model_parallel_size=";
constexpr const char* kPipe = "parallel.pipeline_model_parallel_size=";
constexpr const char* kZero = "parallel.zero_stage=";
constexpr const char* kContext = "parallel.context_parallel_size=";
constexpr const char* kRows = "parallel.sequence_parallel=";

Job job_with(std::vector<std::string> keys, OpenDegrees open) {
  keys.insert(keys.end(), {"task=sft", "actor_rollout_ref.model.path=model",
                           "data.train_batch_size=48", "trainer.n_gpus_per_node=8"});
  Job job;
  const Status status = Job::load({}, keys, job, open);
  EXPECT_TRUE(status.ok()) << status.message();
  return job;
}
std::string with(const char* key, const char* value) {
  return std::string(key) + value;
}
// In the order of kDegreeKeys, those of [parallel]: pipe, tensor, rows, context, ring, zero, shards,
// chunks, zero_bubble.
constexpr std::ptrdiff_t kOfAll = 9;
std::set<std::vector<std::int64_t>> possible(const Job& job) {
  std::set<std::vector<std::int64_t>> out;
  for (const Degrees& degrees : possible_degrees(job))
    out.emplace(degrees.begin(), degrees.begin() + kOfAll);
  return out;
}

TEST(Degrees, AllMeshesWithTheStagesThatSeveralRanksTake) {
  const Job job = job_with(
      {with(kTensor, "auto"), with(kPipe, "auto"), with(kContext, "auto"), with(kZero, "auto")},
      OpenDegrees::kAuto);
  std::set<std::vector<std::int64_t>> expected;
  for (std::int64_t pipe = 1; pipe <= 8; ++pipe)
    for (std::int64_t tensor = 1; tensor <= 8; ++tensor)
      for (std::int64_t rows = 0; rows <= (tensor > 1 ? 1 : 0); ++rows)
        for (std::int64_t context = 1; context <= 8; ++context)
          for (std::int64_t zero = 0; zero <= (pipe * tensor < 8 ? 3 : 0); ++zero)
            if (8 % (pipe * tensor * context) == 0)
              expected.insert({pipe, tensor, rows, context, 0, zero, 0, 1, 0});
  EXPECT_EQ(possible(job), expected);
  const std::vector<Degrees> all = possible_degrees(job);
  EXPECT_EQ(all.size(), expected.size());
  EXPECT_EQ(all.front(), (Degrees{1, 1, 0, 1, 0, 0, 0, 1, 0}));
}

TEST(Degrees, RanksThatDivideSequencesHaveTheSamePart) {
  const Job job = job_with(
      {with(kContext, "4"), with(kTensor, "auto"), with(kPipe, "auto"), with(kZero, "auto")},
      OpenDegrees::kAuto);
  std::set<std::vector<std::int64_t>> expected;
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    expected.insert({1, 1, 0, 4, 0, zero, 0, 1, 0});
    expected.insert({2, 1, 0, 4, 0, zero, 0, 1, 0});
    for (std::int64_t rows = 0; rows <= 1; ++rows)
      expected.insert({1, 2, rows, 4, 0, zero, 0, 1, 0});
  }
  EXPECT_EQ(possible(job), expected);
  EXPECT_EQ(data_ranks(job, {1, 1, 0, 4, 0, 0, 0, 1, 0}), 2);
  EXPECT_EQ(data_ranks(job, {2, 1, 0, 4, 0, 0, 0, 1, 0}), 1);
}

TEST(Degrees, WhatIsSetStays) {
  EXPECT_EQ(possible(job_with({with(kTensor, "auto"), with(kRows, "false"), with(kZero, "2")},
                              OpenDegrees::kAuto)),
            (std::set<std::vector<std::int64_t>>{{1, 1, 0, 1, 0, 2, 0, 1, 0},
                                                 {1, 2, 0, 1, 0, 2, 0, 1, 0},
                                                 {1, 4, 0, 1, 0, 2, 0, 1, 0},
                                                 {1, 8, 0, 1, 0, 2, 0, 1, 0}}));
  EXPECT_EQ(possible(job_with({with(kTensor, "4"), with(kZero, "auto")}, OpenDegrees::kAuto)),
            (std::set<std::vector<std::int64_t>>{{1, 4, 0, 1, 0, 0, 0, 1, 0},
                                                 {1, 4, 0, 1, 0, 1, 0, 1, 0},
                                                 {1, 4, 0, 1, 0, 2, 0, 1, 0},
                                                 {1, 4, 0, 1, 0, 3, 0, 1, 0}}));
  // Those that nobody set, too.
  EXPECT_EQ(possible(job_with({with(kTensor, "4"), with(kZero, "1")}, OpenDegrees::kUnset)),
            (std::set<std::vector<std::int64_t>>{{1, 4, 0, 1, 0, 1, 0, 1, 0},
                                                 {1, 4, 0, 2, 0, 1, 0, 1, 0},
                                                 {1, 4, 0, 2, 1, 1, 0, 1, 0},
                                                 {2, 4, 0, 1, 0, 1, 0, 1, 0}}));
}

TEST(Degrees, RingsAndReplicasOfSlices) {
  constexpr const char* kRing = "parallel.cp_comm_type=";
  constexpr const char* kShards = "parallel.zero_shard_size=";
  const auto open = [](std::vector<std::string> keys) {
    return job_with(std::move(keys), OpenDegrees::kAuto);
  };
  EXPECT_EQ(possible(open({with(kContext, "2"), with(kRing, "auto")})),
            (std::set<std::vector<std::int64_t>>{{1, 1, 0, 2, 0, 0, 0, 1, 0},
                                                 {1, 1, 0, 2, 1, 0, 0, 1, 0}}));
  EXPECT_EQ(possible(open({with(kRing, "auto")})),
            (std::set<std::vector<std::int64_t>>{{1, 1, 0, 1, 0, 0, 0, 1, 0}}));
  // Of all ranks, of two and of four.
  EXPECT_EQ(
      possible(open({with(kShards, "auto"), with(kZero, "3")})),
      (std::set<std::vector<std::int64_t>>{
          {1, 1, 0, 1, 0, 3, 0, 1, 0}, {1, 1, 0, 1, 0, 3, 2, 1, 0}, {1, 1, 0, 1, 0, 3, 4, 1, 0}}));
  EXPECT_EQ(possible(open({with(kShards, "auto"), with(kZero, "0")})),
            (std::set<std::vector<std::int64_t>>{{1, 1, 0, 1, 0, 0, 0, 1, 0}}));
  const Job job =
      open({with(kShards, "auto"), with(kRing, "auto"), with(kContext, "2"), with(kZero, "1")});
  EXPECT_EQ(assignments(job, {1, 1, 0, 2, 1, 1, 4, 1, 0}),
            (std::vector<std::string>{with(kRing, "p2p"), with(kShards, "4")}));
  EXPECT_EQ(assignments(job, {1, 1, 0, 2, 0, 1, 0, 1, 0}),
            (std::vector<std::string>{with(kRing, "all_gather"), with(kShards, "0")}));
}

TEST(Degrees, StagesOfEachModel) {
  const auto open = [](std::vector<std::string> keys) {
    keys.insert(keys.begin(),
                {"task=ppo", "reward_model.model.path=judge", "actor_rollout_ref.model.path=model",
                 "data.train_batch_size=48", "trainer.n_gpus_per_node=8"});
    Job job;
    const Status status = Job::load({}, keys, job, OpenDegrees::kAuto);
    EXPECT_TRUE(status.ok()) << status.message();
    return job;
  };
  // Actor, reference (which the job has not), critic, reward model.
  const Job all = open({"actor_rollout_ref.actor.zero_stage=auto", "critic.zero_stage=auto",
                        "actor_rollout_ref.ref.zero_stage=auto", "reward_model.zero_stage=auto",
                        "critic.tensor_model_parallel_size=8"});
  std::set<std::vector<std::int64_t>> found;
  for (const Degrees& degrees : possible_degrees(all))
    found.emplace(degrees.begin() + kOfAll, degrees.end());
  std::set<std::vector<std::int64_t>> expected;
  for (std::int64_t actor = 0; actor <= 3; ++actor)
    for (const std::int64_t judge : {0, 3}) expected.insert({actor, -1, 0, judge});
  EXPECT_EQ(found, expected);
  const Job one = open({"critic.zero_stage=auto", "parallel.tensor_model_parallel_size=auto"});
  EXPECT_EQ(possible_degrees(one).size(), 4U + 3 * 2 * 4 - 2 * 3);
  Degrees degrees{1, 2, 1, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0};
  EXPECT_EQ(
      assignments(one, degrees),
      (std::vector<std::string>{with(kTensor, "2"), with(kRows, "true"), "critic.zero_stage=2"}));
  EXPECT_EQ(open({"critic.zero_stage=2"}).parallel.automatic.any(), false);
}

TEST(Degrees, ChunksAndZeroBubbleOfStages) {
  constexpr const char* kChunks = "parallel.virtual_pipeline_model_parallel_size=";
  constexpr const char* kSchedule = "parallel.pipeline_parallel_schedule=";
  const auto open = [](std::vector<std::string> keys) {
    return possible(job_with(std::move(keys), OpenDegrees::kAuto));
  };
  using All = std::set<std::vector<std::int64_t>>;
  const auto staged = [](std::int64_t pipe, std::int64_t chunks, std::int64_t zero_bubble) {
    return std::vector<std::int64_t>{pipe, 1, 0, 1, 0, 0, 0, chunks, zero_bubble};
  };
  const All four = {staged(4, 1, 0), staged(4, 1, 1), staged(4, 2, 0), staged(4, 4, 0)};
  EXPECT_EQ(open({with(kPipe, "4"), with(kChunks, "auto"), with(kSchedule, "auto")}), four);
  All all = {staged(1, 1, 0)};
  for (const std::int64_t pipe : {2, 4, 8})
    for (const std::vector<std::int64_t>& each : four) all.insert(staged(pipe, each[7], each[8]));
  EXPECT_EQ(open({with(kPipe, "auto"), with(kChunks, "auto"), with(kSchedule, "auto")}), all);
  // One of them is set: a backward in two parts is of one chunk.
  EXPECT_EQ(open({with(kPipe, "2"), with(kChunks, "3"), with(kSchedule, "auto")}),
            (All{staged(2, 3, 0)}));
  EXPECT_EQ(open({with(kPipe, "2"), with(kChunks, "auto"), with(kSchedule, "zero_bubble")}),
            (All{staged(2, 1, 1)}));
  EXPECT_EQ(open({with(kPipe, "2"), with(kChunks, "auto"), with(kSchedule, "1f1b")}),
            (All{staged(2, 1, 0), staged(2, 2, 0), staged(2, 4, 0)}));
  const Job job = job_with({with(kPipe, "2"), with(kChunks, "auto"), with(kSchedule, "auto")},
                           OpenDegrees::kAuto);
  EXPECT_EQ(assignments(job, {2, 1, 0, 1, 0, 0, 0, 4, 0}),
            (std::vector<std::string>{with(kChunks, "4"), with(kSchedule, "1f1b")}));
  EXPECT_EQ(assignments(job, {2, 1, 0, 1, 0, 0, 0, 1, 1}),
            (std::vector<std::string>{with(kChunks, "1"), with(kSchedule, "zero_bubble")}));
  // Stages of one model alone.
  Job own;
  ASSERT_TRUE(Job::load({},
                        {"task=ppo", "critic.pipeline_model_parallel_size=2", with(kChunks, "auto"),
                         "trainer.n_gpus_per_node=8"},
                        own, OpenDegrees::kAuto)
                  .ok());
  EXPECT_EQ(possible(own), (All{staged(1, 1, 0), staged(1, 2, 0), staged(1, 4, 0)}));
  // They take more memory: nobody who sets neither gets them.
  const Job unset = job_with({with(kPipe, "2")}, OpenDegrees::kUnset);
  EXPECT_FALSE(unset.parallel.automatic.chunks || unset.parallel.automatic.schedule);
}

TEST(Degrees, AreReadBackFromWhatAFileHas) {
  const auto read = [](std::string_view name, const Json& value) {
    const auto key = std::find_if(kDegreeKeys.begin(), kDegreeKeys.end(),
                                  [&](const DegreeKey& each) { return each.name == name; });
    return degree_of(*key, value);
  };
  EXPECT_EQ(read("ring_attention", "p2p"), 1);
  EXPECT_EQ(read("ring_attention", "all_gather"), 0);
  EXPECT_EQ(read("ring_attention", "auto"), std::nullopt);
  EXPECT_EQ(read("ring_attention", 1), std::nullopt);
  EXPECT_EQ(read("zero_bubble", "zero_bubble"), 1);
  EXPECT_EQ(read("zero_bubble", "1f1b"), 0);
  EXPECT_EQ(read("zero_bubble", "auto"), std::nullopt);
  EXPECT_EQ(read("chunks", 2), 2);
  EXPECT_EQ(read("sequence_parallel", true), 1);
  EXPECT_EQ(read("zero_shard_size", 4), 4);
  EXPECT_EQ(read("tensor", "auto"), std::nullopt);
}

TEST(Degrees, OpenOnesAreWrittenOut) {
  const Job job =
      job_with({with(kTensor, "auto"), with(kZero, "auto"), with(kPipe, "2")}, OpenDegrees::kAuto);
  EXPECT_EQ(assignments(job, {2, 4, 1, 1, 0, 1, 0, 1, 0}),
            (std::vector<std::string>{with(kTensor, "4"), with(kRows, "true"), with(kZero, "1")}));
  EXPECT_EQ(data_ranks(job, {2, 4, 1, 1, 0, 1, 0, 1, 0}), 1);
  EXPECT_EQ(data_ranks(job, {2, 2, 1, 1, 0, 1, 0, 1, 0}), 2);
}

TEST(Degrees, OfAJobThatNobodyDividesAutoIsTheDefault) {
  Job job = job_with(
      {with(kTensor, "auto"), with(kPipe, "auto"), with(kContext, "auto"), with(kZero, "auto")},
      OpenDegrees::kNone);
  EXPECT_FALSE(job.parallel.automatic.any());
  EXPECT_EQ(job.data_ranks(), 8);
  EXPECT_EQ(job.bind().to_json()["parallel"]["tensor_model_parallel_size"], 1);
  EXPECT_EQ(job.bind().to_json()["parallel"]["context_parallel_size"], 1);
  ASSERT_EQ(job.warnings.size(), 1U);
  EXPECT_NE(job.warnings[0].find("What is \"auto\" has its default here: "
                                 "parallel.pipeline_model_parallel_size, "
                                 "parallel.tensor_model_parallel_size, "
                                 "parallel.context_parallel_size, parallel.zero_stage."),
            std::string::npos)
      << job.warnings[0];
}

TEST(Degrees, AreIntegersOrAuto) {
  Job job;
  const auto refusal = [&](const std::string& word) {
    return Job::load({}, {"task=sft", "actor_rollout_ref.model.path=model", word}, job,
                     OpenDegrees::kAuto)
        .message();
  };
  EXPECT_NE(refusal(with(kTensor, "automatic")).find("takes an integer or \"auto\", not text"),
            std::string::npos);
  EXPECT_NE(refusal(with(kTensor, "0")).find("the least is 1"), std::string::npos);
  EXPECT_NE(refusal(with(kContext, "0")).find("the least is 1"), std::string::npos);
  EXPECT_NE(refusal(with(kZero, "4")).find("the most is 3"), std::string::npos);
}

}  // namespace
}  // namespace neap::spec
