#include "spec/model/layout.h"

#include <gtest/gtest.h>

#include <map>

#include "unit/spec/read_architecture.h"

namespace neap::spec {
namespace {

std::int64_t parameters(const std::vector<FlatUnit>& units) {
  std::int64_t n = 0;
  for (const FlatUnit& u : units)
    for (const Parameter& p : u.parameters) n += p.elements();
  return n;
}

// The published configurations; parameter counts below are the published models'.
constexpr const char* kQwen7b = R"({"model_type":"qwen2","hidden_size":3584,
  "intermediate_size":18944,"max_position_embeddings":131072,"max_window_layers":28,
  "num_attention_heads":28,"num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,
  "rope_theta":1000000.0,"sliding_window":131072,"tie_word_embeddings":false,
  "use_sliding_window":false,"vocab_size":152064,"bos_token_id":151643,"eos_token_id":151643})";
constexpr const char* kQwenHalf = R"({"model_type":"qwen2","hidden_size":896,
  "intermediate_size":4864,"max_position_embeddings":32768,"num_attention_heads":14,
  "num_hidden_layers":24,"num_key_value_heads":2,"tie_word_embeddings":true,"vocab_size":151936})";
constexpr const char* kMistral7b = R"({"model_type":"mistral","hidden_size":4096,
  "intermediate_size":14336,"max_position_embeddings":32768,"num_attention_heads":32,
  "num_hidden_layers":32,"num_key_value_heads":8,"sliding_window":4096,"vocab_size":32000})";
constexpr const char* kGpt2 = R"({"model_type":"gpt2","n_embd":768,"n_head":12,"n_layer":12,
  "n_positions":1024,"vocab_size":50257,"activation_function":"gelu_new"})";
constexpr const char* kOpt13 = R"({"model_type":"opt","hidden_size":2048,"ffn_dim":8192,
  "num_hidden_layers":24,"num_attention_heads":32,"max_position_embeddings":2048,
  "vocab_size":50272,"word_embed_proj_dim":2048,"do_layer_norm_before":true})";
constexpr const char* kOpt350 = R"({"model_type":"opt","hidden_size":1024,"ffn_dim":4096,
  "num_hidden_layers":24,"num_attention_heads":16,"max_position_embeddings":2048,
  "vocab_size":50272,"word_embed_proj_dim":512,"do_layer_norm_before":false})";

TEST(Layout, CountsThePublishedModels) {
  const std::map<const char*, std::int64_t> published = {
      {kQwen7b, 7615616512}, {kQwenHalf, 494032768}, {kMistral7b, 7241732096},
      {kGpt2, 124439808},    {kOpt13, 1315758080},   {kOpt350, 331196416}};
  for (const auto& [config, count] : published) {
    const auto units = flat_layout(read_architecture(config), Head::kLanguageModel);
    EXPECT_EQ(parameters(units), count) << config;
    EXPECT_GE(total_elements(units), count);
  }
}

TEST(Layout, ParametersAreAlignedAndDisjoint) {
  for (const char* config : {kQwen7b, kGpt2, kOpt350}) {
    for (const Head head : {Head::kLanguageModel, Head::kScalar}) {
      for (const FlatUnit& unit : flat_layout(read_architecture(config), head)) {
        std::int64_t end = 0;
        for (const Parameter& p : unit.parameters) {
          EXPECT_EQ(p.offset % kParameterAlignment, 0) << p.name;
          EXPECT_GE(p.offset, end) << p.name;
          EXPECT_LT(p.offset - end, kParameterAlignment) << p.name;
          end = p.offset + p.elements();
        }
        EXPECT_GE(unit.elements, end);
        EXPECT_LT(unit.elements - end, kParameterAlignment);
      }
    }
  }
}

TEST(Layout, UsesHuggingFacesNames) {
  const auto llama = flat_layout(read_architecture(kQwen7b), Head::kLanguageModel);
  ASSERT_EQ(llama.size(), 30U);
  EXPECT_EQ(llama.front().name, "embed");
  EXPECT_EQ(llama[4].name, "block.3");
  EXPECT_EQ(llama[4].parameters[1].name, "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(llama[4].parameters[2].name, "model.layers.3.self_attn.q_proj.bias");
  EXPECT_EQ(llama[4].parameters[3].shape, (std::vector<std::int64_t>{512, 3584}));
  EXPECT_EQ(llama.back().parameters.back().name, "lm_head.weight");
  const auto gpt2 = flat_layout(read_architecture(kGpt2), Head::kScalar);
  EXPECT_EQ(gpt2[1].parameters[2].name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(gpt2[1].parameters[2].shape, (std::vector<std::int64_t>{768, 2304}));
  EXPECT_EQ(gpt2.back().parameters.back().name, "score.weight");
  const auto opt = flat_layout(read_architecture(kOpt350), Head::kLanguageModel);
  EXPECT_EQ(opt[0].parameters[1].shape, (std::vector<std::int64_t>{2050, 1024}));
  EXPECT_EQ(opt[0].parameters[2].name, "model.decoder.project_in.weight");
  EXPECT_EQ(opt.back().parameters[0].name, "model.decoder.project_out.weight");
}

TEST(Layout, AdaptersFollowTheirTargets) {
  const Architecture s = read_architecture(kOpt13);
  const LoraShape attention{16, {"q_proj", "v_proj"}};
  ASSERT_TRUE(check_lora(s, attention).ok());
  // A (16, 2048) and B (2048, 16) on two linears of 24 blocks.
  EXPECT_EQ(parameters(lora_layout(s, Head::kLanguageModel, attention)), 24 * 2 * 2 * 16 * 2048);
  const LoraShape all{8, {"all-linear"}};
  const auto units = lora_layout(s, Head::kScalar, all);
  EXPECT_EQ(units.size(), 25U);
  EXPECT_EQ(parameters(units), 24 * 8 * (4 * 4096 + 2 * 10240) + 2048);
  EXPECT_EQ(units[0].parameters[0].name,
            "base_model.model.model.decoder.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_NE(check_lora(s, {8, {"gate_proj"}}).message().find("linear layers are q_proj"),
            std::string::npos);
  EXPECT_FALSE(check_lora(s, {4096, {"q_proj"}}).ok());
  EXPECT_TRUE(lora_layout(s, Head::kScalar, {}).empty());
}

TEST(Layout, SaysWhatEachParameterIs) {
  const auto units = flat_layout(read_architecture(kGpt2), Head::kLanguageModel);
  EXPECT_EQ(units[0].block, -1);
  EXPECT_EQ(units[3].block, 2);
  const Parameter* bias = units[3].find(Module::kQueryKeyValue, Part::kBias);
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(bias->name, "transformer.h.2.attn.c_attn.bias");
  EXPECT_EQ(units[3].find(Module::kQuery), nullptr);
  const auto adapters = lora_layout(read_architecture(kGpt2), Head::kScalar, {4, {"c_fc"}});
  EXPECT_EQ(adapters[2].block, 2);
  EXPECT_EQ(adapters[2].find(Module::kUp, Part::kLoraB)->shape,
            (std::vector<std::int64_t>{3072, 4}));
  EXPECT_NE(adapters.back().find(Module::kScore), nullptr);
  EXPECT_EQ(block_linears(read_architecture(kGpt2))[0].module, Module::kQueryKeyValue);
}

TEST(Layout, NormsStandWhereTheModelComputesThem) {
  // OPT-350m: over the sums, so behind the matrices; nothing is left for the head but a projection.
  const auto units = flat_layout(read_architecture(kOpt350), Head::kLanguageModel);
  const FlatUnit& block = units[1];
  EXPECT_EQ(block.find(Module::kAttentionNorm), nullptr);
  EXPECT_LT(block.find(Module::kAttentionOut)->offset,
            block.find(Module::kAttentionAfterNorm)->offset);
  EXPECT_EQ(block.parameters.back().name, "model.decoder.layers.0.final_layer_norm.bias");
  EXPECT_EQ(units.back().parameters.size(), 1U);
}

TEST(Layout, NeighboursAreOneTensor) {
  using Shape = std::vector<std::int64_t>;
  const std::vector<Module> heads{Module::kQuery, Module::kKey, Module::kValue};
  const auto block_of = [](const char* config) {
    return flat_layout(read_architecture(config), Head::kLanguageModel)[1];
  };
  const FlatUnit mistral = block_of(kMistral7b);
  const auto joined = joined_parameters(mistral, heads, Part::kWeight);
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->offset, mistral.find(Module::kQuery)->offset);
  EXPECT_EQ(joined->shape, (Shape{4096 + 2 * 1024, 4096}));
  EXPECT_FALSE(stacked_parameters(mistral, heads, Part::kWeight)) << "of two sizes";
  // Biases lie between the matrices.
  const FlatUnit qwen = block_of(kQwen7b);
  EXPECT_FALSE(joined_parameters(qwen, heads, Part::kWeight));
  const auto stacked = stacked_parameters(qwen, {Module::kKey, Module::kValue}, Part::kWeight);
  ASSERT_TRUE(stacked);
  EXPECT_EQ(stacked->offset, qwen.find(Module::kKey)->offset);
  EXPECT_EQ(stacked->shape, (Shape{2, 512, 3584}));
  EXPECT_EQ(stacked->stride, 512 * 3584 + 512);
  const auto gates = joined_parameters(qwen, {Module::kGate, Module::kUp}, Part::kWeight);
  ASSERT_TRUE(gates);
  EXPECT_EQ(gates->shape, (Shape{std::int64_t{2} * 18944, 3584}));
  EXPECT_FALSE(joined_parameters(block_of(kOpt350), {Module::kGate, Module::kUp}, Part::kWeight));
}

TEST(Layout, LargestSizesStayInside64Bits) {
  const auto units = flat_layout(read_architecture(R"({"model_type":"llama","vocab_size":67108864,
    "hidden_size":1048576,"intermediate_size":4194304,"num_hidden_layers":4096,
    "num_attention_heads":1048576,"head_dim":16})"),
                                 Head::kLanguageModel);
  // 16 bytes an element: weights, gradients and optimizer states.
  EXPECT_LT(static_cast<double>(total_elements(units)) * 16, 18446744073709551615.0);
  for (const FlatUnit& unit : units) EXPECT_GT(unit.elements, 0);
}

}  // namespace
}  // namespace neap::spec
