#include "plan/search/tunables.h"

#include <gtest/gtest.h>

namespace neap::plan {
namespace {

// The sizes of all levels.
std::vector<std::int64_t> levels(const Tunable& tunable, const spec::Job& job,
                                 const std::int64_t& (*size)(const spec::Job&)) {
  std::vector<std::int64_t> sizes;
  for (int level = 1;; ++level) {
    const std::vector<spec::JobChange> changes = tunable.changes(job, level);
    if (changes.empty()) return sizes;
    spec::Job changed = job;
    spec::apply(changes, changed);
    sizes.push_back(size(changed));
  }
}

TEST(Tunables, SizesGoDownToOneThroughDivisors) {
  spec::Job job;
  job.task = spec::Task::kSft;
  job.data.use_dynamic_bsz = false;
  const auto rows = [](const spec::Job& j) -> const std::int64_t& {
    return j.data.micro_batch_size_per_gpu;
  };
  const auto of = [&](std::int64_t size) {
    job.data.micro_batch_size_per_gpu = size;
    return levels(training_micro_batches(), job, rows);
  };
  EXPECT_EQ(of(8), (std::vector<std::int64_t>{4, 2, 1}));
  EXPECT_EQ(of(25), (std::vector<std::int64_t>{5, 1}));
  EXPECT_EQ(of(15), (std::vector<std::int64_t>{5, 3, 1}));
  EXPECT_EQ(of(7), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(of(1024).size(), 10U);
  EXPECT_TRUE(of(1).empty());
}

TEST(Tunables, DecodedSequencesGoDownToOne) {
  spec::Job job;
  job.task = spec::Task::kGrpo;
  job.data.train_batch_size = 1024;
  job.rollout.n = 16;
  job.rollout.batch_size = 0;
  const auto sizes = levels(rollout_batches(), job, [](const spec::Job& j) -> const std::int64_t& {
    return j.rollout.batch_size;
  });
  ASSERT_EQ(sizes.size(), 14U);
  EXPECT_EQ(sizes.front(), 8192);
  EXPECT_EQ(sizes.back(), 1);
}

TEST(Tunables, PagesGoDownToThoseOfOneSequence) {
  spec::Job job;
  job.task = spec::Task::kGrpo;
  job.data.train_batch_size = 8;
  job.data.max_prompt_length = 100;
  job.data.max_response_length = 300;
  job.rollout.n = 2;
  const auto tokens = [&] {
    return levels(cache_pages(), job, [](const spec::Job& j) -> const std::int64_t& {
      return j.rollout.max_total_tokens;
    });
  };
  // 16 sequences of 400 tokens are 100 pages; one has seven.
  EXPECT_EQ(tokens(), (std::vector<std::int64_t>{50 * 64, 25 * 64, 12 * 64, 7 * 64}));
  job.rollout.max_total_tokens = 20 * 64;
  EXPECT_EQ(tokens(), (std::vector<std::int64_t>{10 * 64, 7 * 64}));
  job.rollout.batch_size = 1;
  EXPECT_TRUE(tokens().empty());
  job.task = spec::Task::kSft;
  EXPECT_TRUE(tokens().empty());
}

TEST(Tunables, SlicedModelsAndStagesAreDividedByMoreRanksWhereTheyGenerate) {
  spec::Job job;
  job.task = spec::Task::kGrpo;
  job.trainer.n_gpus_per_node = 12;
  const auto sizes = [&] {
    return levels(divided_generation(), job, [](const spec::Job& j) -> const std::int64_t& {
      return j.rollout.tensor_model_parallel_size;
    });
  };
  EXPECT_TRUE(sizes().empty());
  job.parallel.zero_stage = 3;
  EXPECT_EQ(sizes(), (std::vector<std::int64_t>{2, 3, 4, 6, 12}));
  job.rollout.tensor_model_parallel_size = 4;
  EXPECT_EQ(sizes(), (std::vector<std::int64_t>{6, 12}));
  job.rollout.tensor_model_parallel_size = 0;
  job.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(sizes(), (std::vector<std::int64_t>{3, 4, 6, 12})) << "more than in training";
  job.parallel.zero_stage = 0;
  EXPECT_TRUE(sizes().empty());
  job.parallel.tensor_model_parallel_size = 1;
  job.parallel.pipeline_model_parallel_size = 4;
  EXPECT_EQ(sizes(), (std::vector<std::int64_t>{2, 3, 4, 6, 12}));
  job.task = spec::Task::kSft;
  EXPECT_TRUE(sizes().empty());
}

}  // namespace
}  // namespace neap::plan
