// Stages in threads, each with its part of a model: gradients, norms and results have the bits of one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "spec/model/pipeline.h"
#include "stage_runs.h"
#include "tiny_model.h"

namespace neap::ops {
namespace {

using testing::TestModel;

class Pipeline : public ::testing::TestWithParam<testing::Form> {};

TEST_P(Pipeline, GradientsHaveTheBitsOfOneRank) {
  for (const std::int64_t stages : {2, 3}) {
    for (const std::int64_t micro : {2, 4, 12})
      compare({GetParam().shape}, stages, micro, step::CrossEntropyObjective{31});
  }
}

TEST_P(Pipeline, ChunksHaveTheBitsOfOneRank) {
  Case c{GetParam().shape};
  c.shape.num_hidden_layers = 4;
  c.shape.unrotated_layers.resize(c.shape.unrotated_layers.empty() ? 0 : 4);
  c.shape.sliding_layers.resize(c.shape.sliding_layers.empty() ? 0 : 4);
  for (const std::int64_t micro : {2, 4})
    compare(with_chunks(c, 2), 2, micro, step::CrossEntropyObjective{31});
}

TEST_P(Pipeline, BlocksMayBeComputedAgain) {
  Case c{GetParam().shape};
  c.mode = spec::CheckpointMode::kFull;
  compare(c, 3, 2, step::CrossEntropyObjective{31});
}

TEST_P(Pipeline, BackwardsInTwoPartsHaveTheBitsOfOneRank) {
  Case c = with_zero_bubble({GetParam().shape});
  for (const std::int64_t micro : {2, 12}) compare(c, 3, micro, step::CrossEntropyObjective{31});
  c.mode = spec::CheckpointMode::kFull;
  compare(c, 2, 2, step::CrossEntropyObjective{31});
}

INSTANTIATE_TEST_SUITE_P(Forms, Pipeline, ::testing::ValuesIn(testing::forms()),
                         [](const auto& each) { return each.param.name; });

TEST(PipelineTraining, ManyStagesAndTypes) {
  Case c{testing::tiny_llama()};
  c.shape.num_hidden_layers = 6;
  c.shape.tie_word_embeddings = true;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    c.dtype = dtype;
    for (const std::int64_t stages : {2, 4, 6})
      compare(c, stages, 2, step::CrossEntropyObjective{31});
  }
}

TEST(PipelineTraining, BackwardsInTwoPartsOfManyStages) {
  Case c = with_zero_bubble({testing::tiny_llama()});
  c.shape.num_hidden_layers = 6;
  c.shape.tie_word_embeddings = true;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    c.dtype = dtype;
    for (const std::int64_t stages : {2, 4, 6})
      for (const std::int64_t micro : {1, 2, 3})
        compare(c, stages, micro, step::CrossEntropyObjective{31});
  }
}

TEST(PipelineTraining, BackwardsInTwoPartsOfScalarHeadsPairsAndAdapters) {
  Case reward = with_zero_bubble({testing::tiny_llama(), spec::Head::kScalar});
  reward.shape.num_hidden_layers = 5;
  compare(reward, 3, 2, step::PairObjective{0.01, 6});
  Case adapted = with_zero_bubble({testing::tiny_llama(), spec::Head::kLanguageModel, true});
  adapted.shape.num_hidden_layers = 5;
  compare(adapted, 3, 2, step::CrossEntropyObjective{31});
  const spec::DpoConfig dpo;
  Case preference = with_zero_bubble({testing::tiny_llama()});
  preference.shape.num_hidden_layers = 4;
  preference.shape.tie_word_embeddings = true;
  compare(preference, 4, 1, step::PreferenceObjective{dpo, 6});
}

TEST(PipelineTraining, ChunksOfManyStages) {
  Case c{testing::tiny_llama()};
  c.shape.num_hidden_layers = 12;
  c.shape.tie_word_embeddings = true;
  for (const auto& [stages, chunks] : {std::pair{2, 3}, {2, 6}, {3, 2}, {4, 3}}) {
    for (const std::int64_t micro : {1, 2, 3, 12})
      compare(with_chunks(c, chunks), stages, micro, step::CrossEntropyObjective{31});
  }
  c.mode = spec::CheckpointMode::kFull;
  c.dtype = at::kBFloat16;
  compare(with_chunks(c, 2), 3, 2, step::CrossEntropyObjective{31});
}

TEST(PipelineTraining, ChunksOfScalarHeadsPairsAndAdapters) {
  Case reward{testing::tiny_llama(), spec::Head::kScalar};
  reward.shape.num_hidden_layers = 5;
  compare(with_chunks(reward, 2), 2, 2, step::PairObjective{0.01, 6});
  Case adapted{testing::tiny_llama(), spec::Head::kLanguageModel, true};
  adapted.shape.num_hidden_layers = 5;
  compare(with_chunks(adapted, 2), 2, 2, step::CrossEntropyObjective{31});
  const spec::DpoConfig dpo;
  Case preference{testing::tiny_llama()};
  preference.shape.num_hidden_layers = 4;
  preference.shape.tie_word_embeddings = true;
  compare(with_chunks(preference, 2), 2, 1, step::PreferenceObjective{dpo, 6});
}

TEST(PipelineTraining, ScalarHeadsPairsAndAdapters) {
  Case reward{testing::tiny_llama(), spec::Head::kScalar};
  compare(reward, 3, 2, step::PairObjective{0.01, 6});
  Case adapted{testing::tiny_llama(), spec::Head::kLanguageModel, true};
  compare(adapted, 3, 2, step::CrossEntropyObjective{31});
  const spec::DpoConfig dpo;
  for (const bool tied : {false, true}) {
    Case preference{testing::tiny_llama()};
    preference.shape.tie_word_embeddings = tied;
    compare(preference, 2, 1, step::PreferenceObjective{dpo, 6});
  }
}

TEST(PipelineTraining, StagesStartAsPartsOfTheWholeModel) {
  const Case c{testing::tiny_llama(), spec::Head::kScalar, true};
  const TestModel whole(c.shape, c.head, lora_of(c), c.dtype);
  const auto units = spec::flat_layout(c.shape, c.head);
  const auto adapters = spec::lora_layout(c.shape, c.head, *lora_of(c));
  for (std::int64_t s = 0; s < 3; ++s) {
    const spec::Architecture part = spec::stage_of(c.shape, c.head, 3, s, "actor").value();
    const TestModel model(part, c.head, lora_of(c), c.dtype);
    const auto mine = spec::flat_layout(part, c.head);
    const auto numbers = spec::numbers_in(units, mine);
    for (std::size_t u = 0; u < mine.size(); ++u)
      expect_bits(model.weights[u], whole.weights[numbers[u]], mine[u].name);
    const auto own = spec::lora_layout(part, c.head, *lora_of(c));
    const auto places = spec::numbers_in(adapters, own);
    for (std::size_t u = 0; u < own.size(); ++u)
      expect_bits(model.adapter_weights[u], whole.adapter_weights[places[u]], own[u].name);
  }
}

}  // namespace
}  // namespace neap::ops
