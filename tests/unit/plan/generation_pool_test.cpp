// The pool of a rollout whose sequences end and start at any time, against its plan.
#include <gtest/gtest.h>

#include <random>

#include "plan/counted_memory.h"
#include "plan/counted_backend.h"
#include "plan/transients.h"
#include "step/generation.h"

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::Dtype;

class GenerationPool : public ::testing::Test {
 protected:
  // The demo's PPO: 64 sequences at a time, more of them in validation.
  GenerationPool() {
    job_.task = spec::Task::kPpo;
    job_.data.train_batch_size = kRows;
    job_.data.max_prompt_length = kPrompt;
    job_.data.max_response_length = kResponse;
    job_.data.val_files = {"held_out.jsonl"};
    models_.actor.emplace();
    models_.actor->name = "actor";
    models_.actor->shape =
        value_or_throw(spec::Architecture::from_folder(NEAP_SOURCE_DIR "/examples/reviews/model"));
  }
  [[nodiscard]] Bytes planned(Accuracy accuracy) const {
    const spec::Recipe recipe = spec::describe(job_);
    return value_or_throw(predict_phase(job_, models_, target_, recipe.phases.front(), accuracy))
        .transient;
  }
  static CountedTensor host(const step::Shape& shape, Dtype dtype) {
    return CountedTensor::outside(shape, dtype);
  }
  // A rollout that starts with all rows, then with as many prompts and rows as chance has it.
  [[nodiscard]] Bytes taken(std::uint64_t seed, int steps, std::int64_t fewest) const {
    CountedMemory memory(value_or_throw(pool_settings(job_, target_)));
    step::CountingOps ops(memory, kernel_profile(job_, target_), 2);
    const step::Weights<CountedTensor> weights = counted_weights(*models_.actor, Dtype::kFloat32);
    const spec::Architecture& a = models_.actor->shape;
    step::SlotCache<CountedTensor> cache;
    cache.keys.assign(
        weights.blocks.size(),
        host({kRows, a.num_key_value_heads, kPrompt + kResponse, a.head_dim}, Dtype::kFloat32));
    cache.values = cache.keys;
    std::mt19937_64 random(seed);
    const auto between = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    for (int i = 0; i < steps; ++i) {
      const std::int64_t prompts = i == 0 ? kRows : between(fewest, kRows);
      const std::int64_t rows = i == 0 ? kRows : between(fewest, kRows);
      const std::int64_t limit = kPrompt + between(1, kResponse - 1);
      const auto longs = [](const step::Shape& s) { return host(s, Dtype::kInt64); };
      const step::PromptBatch<CountedTensor> batch{longs({prompts, kPrompt}), longs({prompts}),
                                                   longs({1, prompts}), longs({prompts})};
      (void)step::prefill_and_sample(ops, weights, batch,
                                     {host({prompts}, Dtype::kFloat32), {}, {}}, cache, {});
      step::DecodeRows<CountedTensor> now = step::on_device(
          ops, step::DecodeRows<CountedTensor>{longs({rows}), longs({rows}), longs({rows})});
      (void)step::decode_and_sample(ops, weights, now, {host({rows}, Dtype::kFloat32), {}, {}},
                                    cache, limit, {});
    }
    return memory.peak_reserved();
  }

  static constexpr std::int64_t kRows = 64, kPrompt = 24, kResponse = 40;
  spec::Job job_;
  JobModels models_;
  Target target_;
};

TEST_F(GenerationPool, FewerPromptsMayTakeMoreThanAllOfThem) {
  // One round of the largest passes, as a search counts, does not see it.
  EXPECT_GT(taken(1, 400, 1), planned(Accuracy::kQuick));
  EXPECT_EQ(taken(1, 1, kRows), planned(Accuracy::kQuick));
}

TEST_F(GenerationPool, ThePlanHoldsWhateverEndsFirst) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_EQ(taken(seed, 400, 1), planned(Accuracy::kExact)) << seed;
}

TEST_F(GenerationPool, PromptsThatNeverWaitCostNothing) {
  job_.data.val_files.clear();
  EXPECT_EQ(planned(Accuracy::kExact), taken(1, 1, kRows));
}

}  // namespace
}  // namespace neap::plan
