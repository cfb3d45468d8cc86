#include "spec/model/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "base/json.h"
#include "read_architecture.h"
#include "spec/types/mesh.h"

namespace neap::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Mesh, RanksAlongTheLastAxisAreNeighbours) {
  const Mesh mesh = Mesh().set(Axis::kPipe, 2).set(Axis::kData, 3).set(Axis::kTensor, 4);
  EXPECT_EQ(mesh.ranks(), 24);
  EXPECT_EQ(mesh.coordinate(17, Axis::kPipe), 1);
  EXPECT_EQ(mesh.coordinate(17, Axis::kData), 1);
  EXPECT_EQ(mesh.coordinate(17, Axis::kContext), 0);
  EXPECT_EQ(mesh.coordinate(17, Axis::kTensor), 1);
  EXPECT_THAT(mesh.line(17, Axis::kTensor), ElementsAre(16, 17, 18, 19));
  EXPECT_THAT(mesh.line(17, Axis::kData), ElementsAre(13, 17, 21));
  EXPECT_THAT(mesh.line(17, Axis::kPipe), ElementsAre(5, 17));
  EXPECT_THAT(mesh.line(17, Axis::kContext), ElementsAre(17));
  EXPECT_THAT(mesh.line(17, Axis::kSelf), ElementsAre(17));
}

TEST(Mesh, OneRankIsAMesh) {
  EXPECT_EQ(Mesh().ranks(), 1);
  EXPECT_THAT(Mesh().line(0, Axis::kTensor), ElementsAre(0));
}

Architecture architecture(const std::string& name) {
  const std::string file =
      std::string(NEAP_SOURCE_DIR) + "/tests/golden/architectures/" + name + ".json";
  const auto text = read_file(file, 1_MiB);
  EXPECT_TRUE(text.ok()) << file;
  return read_architecture(Json::parse(*text)["config"]);
}

std::string refusal(const Architecture& a, std::int64_t ranks) {
  const Result<Architecture> part = part_of(a, {ranks, 0}, "actor");
  return part.ok() ? "" : part.status().message();
}

TEST(TensorParallel, SizesThatDoNotFitAreRefusedWithThoseThatDo) {
  Architecture a = architecture("qwen2");  // 4 heads, 2 key heads, 48 columns, 40 tokens
  EXPECT_EQ(refusal(a, 3),
            "tensor_model_parallel_size 3 does not go with the actor model: it does not divide "
            "its 4 attention heads. Possible: 1, 2, 4");
  a.vocab_size = 42;
  EXPECT_THAT(refusal(a, 4), HasSubstr("its 42 tokens of the vocabulary. Possible: 1, 2"));
  a.vocab_size = 40;
  a.intermediate_size = 50;
  EXPECT_THAT(refusal(a, 4), HasSubstr("its 50 MLP columns. Possible: 1, 2"));
  // Keys in one matrix with queries, and norms across heads, cannot be on several ranks.
  EXPECT_THAT(refusal(architecture("phi3"), 4), HasSubstr("its 2 key heads. Possible: 1, 2"));
  EXPECT_THAT(refusal(architecture("olmo2"), 4), HasSubstr("its 2 key heads. Possible: 1, 2"));
  Architecture six = architecture("qwen2");
  six.num_attention_heads = 12;
  six.num_key_value_heads = 4;
  six.vocab_size = 36;
  EXPECT_THAT(refusal(six, 6), HasSubstr("nor is it a multiple of them"));
}

TEST(TensorParallel, APartHasAShareOfEachSize) {
  const Architecture whole = architecture("qwen2");
  const Architecture part = *part_of(whole, {4, 3}, "actor");
  EXPECT_EQ(part.tensor, (TensorShard{4, 3}));
  EXPECT_EQ(part.num_attention_heads, 1);
  EXPECT_EQ(part.num_key_value_heads, 1);
  EXPECT_EQ(part.key_parts, 2);  // each key head is on two ranks
  EXPECT_EQ(part.intermediate_size, 12);
  EXPECT_EQ(part.vocab_size, 10);
  EXPECT_EQ(part.hidden_size, whole.hidden_size);
  EXPECT_EQ(*part_of(whole, {1, 0}, "actor")->config.find("vocab_size"), 40);
}

// Every element of a whole parameter is in as many parts as ranks have a copy of it, and a part's shape is that
// of its layout.
void expect_parts_make_the_whole(const Architecture& whole, std::int64_t ranks, bool lora) {
  const LoraShape adapters{.rank = lora ? 2 : 0, .targets = {std::string(kAllLinear)}};
  const auto layout = [&](const Architecture& a) {
    return lora ? lora_layout(a, Head::kLanguageModel, adapters)
                : flat_layout(a, Head::kLanguageModel);
  };
  const std::vector<FlatUnit> all = layout(whole);
  std::map<std::string, std::vector<std::int64_t>> seen;  // by row or column
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Architecture part = *part_of(whole, {ranks, rank}, "actor");
    const std::vector<FlatUnit> own = layout(part);
    ASSERT_EQ(own.size(), all.size());
    for (std::size_t u = 0; u < own.size(); ++u) {
      for (std::size_t i = 0; i < own[u].parameters.size(); ++i) {
        const Parameter& p = own[u].parameters[i];
        const Parameter& w = all[u].parameters[i];
        ASSERT_EQ(p.name, w.name);
        const ParameterCut cut = cut_of(whole, {ranks, rank}, p);
        EXPECT_EQ(cut.cuts(), p.spread.parts > 1) << p.name;
        EXPECT_EQ(cut.dimension, p.spread.dimension) << p.name;
        if (!cut.cuts()) {
          EXPECT_EQ(p.shape, w.shape) << p.name;
          continue;
        }
        const auto dimension = static_cast<std::size_t>(cut.dimension);
        std::vector<std::int64_t>& places = seen[p.name];
        places.resize(static_cast<std::size_t>(w.shape[dimension]));
        std::int64_t count = 0;
        for (const ParameterCut::Range& range : cut.ranges) {
          count += range.count;
          for (std::int64_t at = range.first; at < range.first + range.count; ++at)
            ++places.at(static_cast<std::size_t>(at));
        }
        std::vector<std::int64_t> shape = w.shape;
        shape[dimension] = count;
        EXPECT_EQ(p.shape, shape) << p.name;
        EXPECT_EQ(ranks % p.spread.parts, 0) << p.name;
      }
    }
  }
  const std::int64_t copies = std::max<std::int64_t>(1, ranks / whole.num_key_value_heads);
  for (const auto& [name, places] : seen) {
    const bool keys =
        name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos;
    for (const std::int64_t n : places) ASSERT_EQ(n, keys ? copies : 1) << name;
  }
}

TEST(TensorParallel, PartsMakeTheWhole) {
  for (const char* name : {"bloom", "gemma2", "gpt2", "gpt_neox", "olmo2", "opt", "opt_post_norm",
                           "phi3", "qwen2", "qwen3", "smollm3"}) {
    const Architecture whole = architecture(name);
    for (const std::int64_t ranks : {2, 4}) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
      if (!part_of(whole, {ranks, 0}, "actor").ok()) continue;
      for (const bool lora : {false, true}) expect_parts_make_the_whole(whole, ranks, lora);
    }
  }
}

TEST(TensorParallel, RangesOfAUnitAreSpreadAlikeAndLeaveNothingOut) {
  const Architecture whole = architecture("qwen3");
  const std::vector<FlatUnit> units = flat_layout(whole, Head::kLanguageModel);
  for (const FlatUnit& unit : units) {
    const std::vector<SpreadRange> ranges = spread_ranges(unit);
    ASSERT_EQ(ranges.size(), 1U);  // a whole model is summed and counted as it always was
    EXPECT_EQ(ranges[0].first, 0);
    EXPECT_EQ(ranges[0].count, unit.elements);
  }
  const std::vector<FlatUnit> parts =
      flat_layout(*part_of(whole, {4, 1}, "actor"), Head::kLanguageModel);
  for (const FlatUnit& unit : parts) {
    std::int64_t end = 0;
    for (const SpreadRange& range : spread_ranges(unit)) {
      EXPECT_EQ(range.first, end);
      end += range.count;
    }
    EXPECT_EQ(end, unit.elements);
  }
  // Norms of rows that ranks divide: each rank has the gradient by its rows.
  const auto spreads = [](const char* name, bool rows) {
    std::map<Module, Spread> out;
    for (const FlatUnit& unit :
         flat_layout(*part_of(architecture(name), {2, 1, rows}, "actor"), Head::kLanguageModel))
      for (const Parameter& p : unit.parameters)
        if (p.part == Part::kWeight) out[p.module] = p.spread;
    return out;
  };
  for (const char* name : {"gemma2", "opt_post_norm", "bloom", "gpt2", "olmo2"}) {
    const auto whole_rows = spreads(name, false);
    for (const auto& [module, spread] : spreads(name, true)) {
      const bool between = module == Module::kPositionEmbedding || module == Module::kProjectIn ||
                           module == Module::kEmbeddingNorm || module == Module::kAttentionNorm ||
                           module == Module::kAttentionAfterNorm || module == Module::kMlpNorm ||
                           module == Module::kMlpAfterNorm;
      EXPECT_EQ(spread, (between ? Spread{1, true} : whole_rows.at(module))) << name;
    }
  }
  const FlatUnit& block = parts[1];
  EXPECT_EQ(block.find(Module::kAttentionNorm)->spread, (Spread{1, false}));
  EXPECT_EQ(block.find(Module::kQueryNorm)->spread, (Spread{1, true}));
  EXPECT_EQ(block.find(Module::kQuery)->spread, (Spread{4, false, 0}));
  EXPECT_EQ(block.find(Module::kKey)->spread, (Spread{2, true, 0}));
  EXPECT_EQ(block.find(Module::kKey)->spread.part_of({4, 3}), 1);
  EXPECT_TRUE(block.find(Module::kKey)->spread.counts_on({4, 2}));
  EXPECT_FALSE(block.find(Module::kKey)->spread.counts_on({4, 3}));
}

}  // namespace
}  // namespace neap::spec
