#include "spec/model/adapter_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/format.h"
#include "spec/model/layout.h"
#include "spec/types/name_pattern.h"

namespace neap::spec {
namespace {

Architecture llama() {
  const Json config = {{"model_type", "llama"},    {"vocab_size", 40},
                       {"hidden_size", 16},        {"intermediate_size", 24},
                       {"num_hidden_layers", 3},   {"num_attention_heads", 4},
                       {"num_key_value_heads", 2}, {"tie_word_embeddings", false}};
  return *Architecture::from_json(config, "llama");
}

Json config(const Json& more) {
  Json out = {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}};
  out.update(more);
  return out;
}
Result<AdapterConfig> read_adapter(const Json& more) {
  return AdapterConfig::from_json(config(more), "a.json", llama());
}
std::string error(const Json& more) {
  return read_adapter(more).status().message();
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(NamePattern, MatchesWholePaths) {
  const auto matches = [](const char* pattern, const char* path) {
    return *NamePattern::compile(pattern)->matches(path);
  };
  EXPECT_TRUE(matches(R"(model\.layers\.\d+\.(?:q|k)_proj)", "model.layers.12.k_proj"));
  EXPECT_FALSE(matches(R"(layers\.\d+\.q_proj)", "model.layers.1.q_proj"));
  EXPECT_TRUE(matches(R"(.*layers\.[\d]{1,}\..*)", "model.layers.1.q_proj"));
  EXPECT_TRUE(matches(".*(q|v)_proj", "x.v_proj"));
}

TEST(NamePattern, ReadsWhatPythonsReReads) {
  const auto matches = [](const char* pattern, const char* path) {
    const auto made = NamePattern::compile(pattern);
    return made.ok() && *made->matches(path);
  };
  EXPECT_TRUE(matches(R"(.*\.(?!0\.)\d+\.q_proj)", "model.layers.11.q_proj"));
  EXPECT_FALSE(matches(R"(.*\.(?!0\.)\d+\.q_proj)", "model.layers.0.q_proj"));
  EXPECT_TRUE(matches(R"((?i)MODEL\.\d{1,2}\.x)", "model.11.x"));
  EXPECT_TRUE(matches(R"((a)\1)", "aa"));
}

TEST(NamePattern, RefusesWhatCouldTakeForever) {
  for (const char* pattern : {"(a", "*", "a{2,1}"})
    EXPECT_EQ(NamePattern::compile(pattern).status().code(), ErrorCode::kUnsupported) << pattern;
  EXPECT_FALSE(NamePattern::compile(std::string(3000, 'a')).ok());
  EXPECT_FALSE(NamePattern::compile(std::string(900, '(') + std::string(900, ')')).ok());
  // 2^60 ways to try. PCRE2 would search the text for a single character at the end first.
  const auto slow = NamePattern::compile("(a+)+[bc]");
  ASSERT_TRUE(slow.ok());
  const Status status = slow->matches(std::string(60, 'a')).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(has(status.message(), "takes over the limit of 100000 steps")) << status.message();
}

TEST(AdapterConfig, APatternOverItsLimitIsAFailureOfItsKey) {
  const std::string slow = "(([a-z0-9_.]+)+)+[!?]";
  const Json patterns = {{slow, 4}};
  for (const auto& [key, value] :
       {std::pair("target_modules", Json(slow)), std::pair("exclude_modules", Json(slow)),
        std::pair("rank_pattern", patterns), std::pair("alpha_pattern", patterns)}) {
    const std::string text = error({{key, value}});
    EXPECT_TRUE(has(text, format("a.json: {} the regular expression", key))) << text;
    EXPECT_TRUE(has(text, "takes over the limit of 100000 steps")) << text;
  }
}

TEST(AdapterConfig, ChoosesLayersAsPeftDoes) {
  const auto paths = [](const Json& more) {
    std::vector<std::string> out;
    const auto read_config = read_adapter(more);
    EXPECT_TRUE(read_config.ok()) << read_config.status().message();
    for (const auto& [path, module] : read_config->lora.modules) out.push_back(path);
    return out;
  };
  EXPECT_EQ(paths({{"target_modules", {"q_proj"}}}).size(), 3u);
  EXPECT_TRUE(has(error({{"target_modules", {"proj"}}}), "chooses no linear layer"))
      << "a part of a name is none";
  EXPECT_EQ(paths({{"target_modules", "all-linear"}}).size(), 7u * 3) << "without the head";
  EXPECT_EQ(paths({{"target_modules", {"lm_head"}}}), std::vector<std::string>{"lm_head"});
  EXPECT_EQ(paths({{"layers_to_transform", {2}}}),
            std::vector<std::string>{"model.layers.2.self_attn.q_proj"});
  EXPECT_EQ(paths({{"layers_to_transform", 1}}).size(), 1u);
  EXPECT_EQ(paths({{"target_modules", "all-linear"}, {"exclude_modules", {"mlp.up_proj"}}}).size(),
            6u * 3);
  EXPECT_EQ(paths({{"target_modules", R"(.*\.1\..*_proj)"}}).size(), 7u);
  EXPECT_EQ(
      paths({{"target_modules", {"q_proj", "lm_head"}}, {"modules_to_save", {"lm_head"}}}).size(),
      3u);
}

TEST(AdapterConfig, PatternsGiveLayersTheirOwnRankAndAlpha) {
  const auto config = read_adapter({{"target_modules", {"q_proj", "up_proj"}},
                                    {"rank_pattern", {{"layers.1.mlp.up_proj", 2}, {"up_proj", 6}}},
                                    {"alpha_pattern", {{"^model.layers.0.mlp.*", 3}}},
                                    {"use_rslora", true}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const LoraShape& lora = config->lora;
  EXPECT_EQ(lora.of("model.layers.1.mlp.up_proj"), (LoraModule{2, 8}));
  EXPECT_EQ(lora.of("model.layers.0.mlp.up_proj"), (LoraModule{6, 3}));
  EXPECT_EQ(lora.of("model.layers.0.self_attn.q_proj"), (LoraModule{4, 8}));
  EXPECT_EQ(lora.of("model.layers.0.self_attn.k_proj").rank, 0);
  EXPECT_EQ(lora.scale({4, 8}), 4) << "alpha / sqrt(rank)";
}

TEST(AdapterConfig, IsWrittenAsItIsRead) {
  for (const Json& more :
       {Json::object(),
        Json{{"target_modules", {"q_proj", "up_proj"}}, {"layers_to_transform", {0, 2}}},
        Json{{"rank_pattern", {{"layers.1.self_attn.q_proj", 2}}}, {"use_rslora", true}},
        Json{{"alpha_pattern", {{"q_proj", 2.5}}}}}) {
    const AdapterConfig first = *read_adapter(more);
    const Json written = adapter_json(first.lora, llama(), Head::kLanguageModel, "base");
    const auto again = AdapterConfig::from_json(written, "written", llama());
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->lora.modules, first.lora.modules) << written.dump();
    EXPECT_EQ(again->lora.rank_stabilized, first.lora.rank_stabilized);
  }
}

TEST(AdapterConfig, RefusesWhatIsNotRead) {
  EXPECT_TRUE(has(error({{"peft_type", "LOHA"}}), "a.json: peft_type is not \"LORA\""));
  EXPECT_TRUE(has(error({{"r", 0}}), "r is 0"));
  EXPECT_TRUE(has(error({{"lora_alpha", "x"}}), "lora_alpha is \"x\""));
  EXPECT_TRUE(has(error({{"target_modules", nullptr}}), "target_modules is missing"));
  EXPECT_TRUE(has(error({{"target_modules", {1}}}), "neither a list of names"));
  EXPECT_TRUE(has(error({{"target_modules", "(x"}}), "does not compile"));
  EXPECT_TRUE(has(error({{"rank_pattern", {{"q_proj", 1.5}}}}), "has \"1.5\" for \"q_proj\""));
  EXPECT_TRUE(has(error({{"layers_to_transform", "1"}}), "neither a number"));
  EXPECT_TRUE(has(error({{"layers_to_transform", 1}, {"target_modules", "all-linear"}}),
                  "goes only with a list"));
  EXPECT_TRUE(has(error({{"bias", "some"}}), "bias is not"));
  EXPECT_TRUE(has(error({{"some_new_config", {{"a", 1}}}}), "some_new_config is set"));
  EXPECT_TRUE(has(error({{"init_lora_weights", "olora"}}), "changes the weights of the base"));
  EXPECT_TRUE(
      read_adapter({{"init_lora_weights", "gaussian"}, {"loftq_config", Json::object()}}).ok());
  for (const char* key : {"target_parameters", "trainable_token_indices", "layer_replication"})
    EXPECT_TRUE(has(error({{key, {1}}}), "merge the adapter with PEFT first")) << key;
}

TEST(AdapterConfig, SaysWhatTrainingCannotContinue) {
  const auto refusal = [](const Json& more) {
    return read_adapter(more)->check_trainable("a.json", llama()).message();
  };
  EXPECT_EQ(refusal({{"modules_to_save", {"score", "classifier"}}}), "ok");
  EXPECT_TRUE(has(refusal({{"use_dora", true}}), "use_dora"));
  EXPECT_TRUE(has(refusal({{"bias", "all"}}), "biases"));
  EXPECT_TRUE(has(refusal({{"modules_to_save", {"embed_tokens"}}}), "\"embed_tokens\" whole"));
  EXPECT_TRUE(has(refusal({{"target_modules", {"lm_head"}}}), "\"lm_head\", which is in no block"));
}

TEST(ModelFiles, AnAdapterBesideWeightsIsTheirs) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "neap-model-files";
  const fs::path base = folder / "base", adapter = folder / "adapter";
  fs::remove_all(folder);
  for (const fs::path& made : {base, adapter}) fs::create_directories(made);
  const auto write = [](const fs::path& file, const std::string& text) {
    ASSERT_TRUE(write_file_atomic(file, text).ok());
  };
  write(base / "config.json", "{}");
  EXPECT_FALSE(has_weights(base));
  EXPECT_EQ(find_model(base)->base, base) << "random weights, then";
  EXPECT_TRUE(find_model(base)->adapter.empty());
  write(adapter / kAdapterConfig, R"({"base_model_name_or_path": ")" + base.string() + R"("})");
  // Neither an adapter's weights nor a shard without its index are a model's.
  write(adapter / kAdapterWeights, "");
  write(adapter / "model-00001-of-00002.safetensors", "");
  EXPECT_FALSE(has_weights(adapter));
  EXPECT_EQ(find_model(adapter)->base, base);
  EXPECT_EQ(find_model(adapter)->adapter, adapter);
  for (const char* name : {kModelWeights, kModelWeightIndex}) {
    write(adapter / name, "");
    EXPECT_TRUE(has_weights(adapter));
    EXPECT_EQ(find_model(adapter)->base, adapter);
    EXPECT_EQ(find_model(adapter)->adapter, adapter);
    fs::remove(adapter / name);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace neap::spec
