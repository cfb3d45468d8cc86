#include "spec/model/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "read_architecture.h"
#include "spec/model/layout.h"

namespace neap::spec {
namespace {

Architecture model_of(std::int64_t layers, std::int64_t vocabulary, bool tied) {
  Json config = Json::parse(R"({"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128,
                                "num_attention_heads": 4, "num_key_value_heads": 2})");
  config["num_hidden_layers"] = layers;
  config["vocab_size"] = vocabulary;
  config["tie_word_embeddings"] = tied;
  return read_architecture(config);
}

Architecture stage(const Architecture& whole, Head head, std::int64_t stages, std::int64_t number) {
  Result<Architecture> out = stage_of(whole, head, stages, number, "actor");
  EXPECT_TRUE(out.ok()) << out.status().message();
  return out.ok() ? *out : whole;
}

std::int64_t parameters_of(const Architecture& whole, Head head, std::int64_t stages,
                           std::int64_t number) {
  return total_elements(flat_layout(stage(whole, head, stages, number), head));
}

TEST(PipelineStages, HaveTheUnitsOfTheModelOneAfterAnother) {
  for (const bool tied : {false, true}) {
    for (const Head head : {Head::kLanguageModel, Head::kScalar}) {
      const Architecture whole = model_of(7, 320, tied);
      const std::vector<FlatUnit> units = flat_layout(whole, head);
      for (std::int64_t stages = 1; stages <= 7; ++stages) {
        std::vector<std::string> names;
        for (std::int64_t s = 0; s < stages; ++s) {
          const Architecture part = stage(whole, head, stages, s);
          EXPECT_EQ(part.num_hidden_layers, 7);
          EXPECT_EQ(copies_table(part, head),
                    tied && head == Head::kLanguageModel && s > 0 && s + 1 == stages);
          for (const FlatUnit& unit : flat_layout(part, head)) {
            const auto same = std::find_if(units.begin(), units.end(), [&](const FlatUnit& each) {
              return each.name == unit.name && each.elements == unit.elements &&
                     each.block == unit.block;
            });
            EXPECT_NE(same, units.end()) << unit.name;
            if (copies_table(part, head) && unit.name == "embed") {
              EXPECT_EQ(stage_of_unit(whole, head, stages, unit), 0);
            } else {
              EXPECT_EQ(stage_of_unit(whole, head, stages, unit), s) << unit.name;
            }
            const bool copy = copies_table(part, head) && unit.name == "embed";
            if (!copy) names.push_back(unit.name);
          }
        }
        ASSERT_EQ(names.size(), units.size());
        for (std::size_t i = 0; i < units.size(); ++i) EXPECT_EQ(names[i], units[i].name);
      }
    }
  }
}

// What a token is multiplied by: a block's matrices, and the head's on the last stage.
struct Work {
  std::int64_t block = 0, head = 0;
  Work(const Architecture& whole, Head kind) {
    for (const Linear& linear : block_linears(whole)) block += linear.in * linear.out;
    head = whole.hidden_size * (kind == Head::kLanguageModel ? whole.vocab_size : 1);
  }
  [[nodiscard]] std::int64_t largest(const std::vector<std::int64_t>& blocks) const {
    std::int64_t most = blocks.back() * block + head;
    for (const std::int64_t n : blocks) most = std::max(most, n * block);
    return most;
  }
};
std::int64_t most_parameters(const Architecture& whole, Head head,
                             const std::vector<std::int64_t>& blocks) {
  Architecture laid = whole;
  laid.pipeline.layout = blocks;
  std::int64_t most = 0;
  for (std::int64_t s = 0; s < std::ssize(blocks); ++s)
    most = std::max(most, parameters_of(laid, head, std::ssize(blocks), s));
  return most;
}

TEST(PipelineStages, TheLargestHasTheLeastWorkAndThenTheFewestParameters) {
  std::mt19937 random(1);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    const std::int64_t layers = draw(2, 9), stages = draw(2, std::min<std::int64_t>(layers, 4));
    const Head head = draw(0, 1) == 1 ? Head::kLanguageModel : Head::kScalar;
    const Architecture whole = model_of(layers, draw(64, 3000), draw(0, 1) == 1);
    const std::vector<std::int64_t> chosen = divide_blocks(whole, head, stages);
    EXPECT_EQ(std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0}), layers);
    const Work work(whole, head);
    std::pair<std::int64_t, std::int64_t> least(INT64_MAX, INT64_MAX);
    std::vector<std::int64_t> blocks;
    const std::function<void(std::int64_t)> try_all = [&](std::int64_t left) {
      if (std::ssize(blocks) + 1 == stages) {
        blocks.push_back(left);
        least = std::min(least, {work.largest(blocks), most_parameters(whole, head, blocks)});
        blocks.pop_back();
        return;
      }
      for (std::int64_t n = 1; n + stages - std::ssize(blocks) - 1 <= left; ++n) {
        blocks.push_back(n);
        try_all(left - n);
        blocks.pop_back();
      }
    };
    try_all(layers);
    EXPECT_EQ(work.largest(chosen), least.first) << layers << " blocks, " << stages << " stages";
    EXPECT_EQ(most_parameters(whole, head, chosen), least.second)
        << layers << " blocks, " << stages << " stages";
  }
}

TEST(PipelineStages, NoneIsEmptyOrHasABlockMoreThanItsShareOfTheWork) {
  for (const std::int64_t layers : {1, 2, 3, 7, 28, 72, 96, 128, 191}) {
    for (const std::int64_t vocabulary : {64, 2000, 40000}) {
      const Architecture whole = model_of(layers, vocabulary, vocabulary == 2000);
      const Work work(whole, Head::kLanguageModel);
      for (std::int64_t stages = 1; stages <= layers; ++stages) {
        const std::vector<std::int64_t> blocks = divide_blocks(whole, Head::kLanguageModel, stages);
        ASSERT_EQ(std::ssize(blocks), stages);
        EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}), layers);
        EXPECT_GE(*std::min_element(blocks.begin(), blocks.end()), 1);
        // No division has less than the mean, nor than a head behind a block.
        const std::int64_t bound =
            std::max((layers * work.block + work.head) / stages, work.block + work.head);
        EXPECT_LE(work.largest(blocks), bound + work.block)
            << layers << " blocks, " << stages << " stages, vocabulary of " << vocabulary;
      }
    }
  }
}

TEST(PipelineStages, BlocksBetweenTheEndsAreEven) {
  // BigScience's 72 blocks: their head is 1.46 of a block.
  Architecture whole = model_of(72, 250880, false);
  whole.hidden_size = whole.embedding_dim = 14336;
  whole.intermediate_size = 4 * whole.hidden_size;
  whole.num_attention_heads = whole.num_key_value_heads = 64;
  whole.head_dim = 224;
  whole.gated = false;
  EXPECT_EQ(divide_blocks(whole, Head::kLanguageModel, 12),
            (std::vector<std::int64_t>{5, 6, 6, 6, 6, 6, 6, 6, 6, 7, 7, 5}));
  EXPECT_EQ(divide_blocks(whole, Head::kScalar, 12), std::vector<std::int64_t>(12, 6));
}

TEST(PipelineStages, OfEqualDivisionsTheLaterStagesHaveMore) {
  EXPECT_EQ(divide_blocks(model_of(5, 64, false), Head::kScalar, 4),
            (std::vector<std::int64_t>{1, 1, 2, 1}));
}

TEST(PipelineStages, ALayoutSaysHowManyBlocksEachHas) {
  Architecture whole = model_of(6, 64, false);
  whole.pipeline.layout = {1, 4, 1};
  const auto middle = stage_of(whole, Head::kLanguageModel, 3, 1, "actor");
  ASSERT_TRUE(middle.ok()) << middle.status().message();
  EXPECT_EQ(middle->pipeline.ranges, (std::vector<BlockRange>{{1, 4}}));
  EXPECT_EQ(middle->blocks(), 4);
  EXPECT_EQ(undivided(*middle).pipeline, whole.pipeline);
  for (const FlatUnit& unit : flat_layout(whole, Head::kLanguageModel)) {
    if (unit.block >= 0) {
      const std::int64_t stage = unit.block == 0 ? 0 : unit.block == 5 ? 2 : 1;
      EXPECT_EQ(stage_of_unit(whole, Head::kLanguageModel, 3, unit), stage) << unit.name;
    }
  }
  whole.pipeline.layout = {2, 3};
  EXPECT_EQ(stage_of(whole, Head::kLanguageModel, 2, 0, "actor").status().message(),
            "pipeline_model_parallel_layout has 2 stages with 5 blocks; the actor model "
            "has 6 blocks for 2 stages");
}

TEST(PipelineStages, MoreThanBlocksAreRefused) {
  const auto refused = stage_of(model_of(2, 64, true), Head::kLanguageModel, 3, 0, "actor");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(),
            "pipeline_model_parallel_size 3 is more than the 2 blocks of the actor model; "
            "every stage has one at least");
}

TEST(PipelineStages, AdaptersAreThoseOfTheirBlocks) {
  const Architecture whole = model_of(5, 64, false);
  LoraShape lora{.rank = 4, .targets = {"q_proj"}};
  std::vector<std::string> names;
  for (std::int64_t s = 0; s < 3; ++s)
    for (const FlatUnit& unit : lora_layout(stage(whole, Head::kScalar, 3, s), Head::kScalar, lora))
      names.push_back(unit.name);
  std::vector<std::string> expected;
  for (const FlatUnit& unit : lora_layout(whole, Head::kScalar, lora))
    expected.push_back(unit.name);
  EXPECT_EQ(names, expected);
}

Architecture with_chunks(Architecture whole, std::int64_t chunks) {
  whole.pipeline.chunks = chunks;
  return whole;
}

TEST(PipelineChunks, TakeTurnsThroughTheModel) {
  for (const bool tied : {false, true}) {
    const Architecture whole = with_chunks(model_of(13, 320, tied), 3);
    const std::vector<std::int64_t> blocks = divide_blocks(whole, Head::kLanguageModel, 4);
    ASSERT_EQ(blocks.size(), 12u);
    std::vector<bool> seen(13);
    for (std::int64_t s = 0; s < 4; ++s) {
      const Architecture part = stage(whole, Head::kLanguageModel, 4, s);
      EXPECT_EQ(part.chunks(), 3);
      ASSERT_EQ(part.pipeline.ranges.size(), 3u);
      std::int64_t place = 0;
      for (std::int64_t c = 0; c < 3; ++c) {
        const auto first =
            std::accumulate(blocks.begin(), blocks.begin() + 4 * c + s, std::int64_t{0});
        const BlockChunk chunk = part.chunk(c);
        EXPECT_EQ(chunk.blocks.first, place);
        EXPECT_EQ(chunk.blocks.count, blocks[static_cast<std::size_t>(4 * c + s)]);
        EXPECT_EQ(chunk.embeds, s == 0 && c == 0);
        EXPECT_EQ(chunk.has_head, s == 3 && c == 2);
        for (std::int64_t i = 0; i < chunk.blocks.count; ++i, ++place) {
          EXPECT_EQ(part.block_at(place), first + i);
          EXPECT_EQ(part.place_of_block(first + i), place);
          seen[static_cast<std::size_t>(first + i)] = true;
        }
      }
      EXPECT_EQ(part.blocks(), place);
      for (const FlatUnit& unit : flat_layout(part, Head::kLanguageModel)) {
        const bool copy = s == 3 && unit.find(Module::kTokenEmbedding) != nullptr;
        EXPECT_EQ(stage_of_unit(whole, Head::kLanguageModel, 4, unit), copy ? 0 : s) << unit.name;
      }
      EXPECT_EQ(lora_layout(part, Head::kLanguageModel, {.rank = 2, .targets = {"q_proj"}}).size(),
                static_cast<std::size_t>(place));
      EXPECT_EQ(undivided(part).pipeline, whole.pipeline);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 13);
  }
}

TEST(PipelineChunks, OneStageHasTheWholeModel) {
  const Architecture whole = with_chunks(model_of(5, 64, false), 2);
  const Architecture one = stage(whole, Head::kLanguageModel, 1, 0);
  EXPECT_EQ(one.chunks(), 1);
  EXPECT_EQ(one.blocks(), 5);
  EXPECT_EQ(one.block_at(3), 3);
  EXPECT_EQ(one.place_of_block(3), 3);
}

// Blocks that are left over go to different stages.
TEST(PipelineChunks, StagesAreEven) {
  for (const std::int64_t blocks : {8, 9, 10, 11, 12}) {
    const Architecture whole = with_chunks(model_of(blocks, 64, false), 2);
    std::vector<std::int64_t> of_stages;
    for (std::int64_t s = 0; s < 4; ++s)
      of_stages.push_back(stage(whole, Head::kScalar, 4, s).blocks());
    const auto [least, most] = std::minmax_element(of_stages.begin(), of_stages.end());
    EXPECT_LE(*most - *least, 1) << blocks;
  }
}

TEST(PipelineChunks, TooManyPartsAreRefusedWithThoseThatWouldDo) {
  const Architecture whole = with_chunks(model_of(7, 64, true), 4);
  EXPECT_EQ(stage_of(whole, Head::kLanguageModel, 2, 0, "actor").status().message(),
            "parallel.virtual_pipeline_model_parallel_size 4 and 2 stages are 8 parts, more than "
            "the 7 blocks of the actor model; every part has one at least: take 3 at most");
  Architecture laid = with_chunks(model_of(7, 64, true), 2);
  laid.pipeline.layout = {3, 4};
  EXPECT_EQ(stage_of(laid, Head::kLanguageModel, 2, 0, "actor").status().message(),
            "pipeline_model_parallel_layout has 2 parts with 7 blocks; the actor model has "
            "7 blocks for 2 stages of 2 chunks, 4 parts");
  laid.pipeline.layout = {1, 2, 3, 1};
  EXPECT_EQ(stage(laid, Head::kLanguageModel, 2, 1).pipeline.ranges,
            (std::vector<BlockRange>{{1, 2}, {6, 1}}));
}

}  // namespace
}  // namespace neap::spec
