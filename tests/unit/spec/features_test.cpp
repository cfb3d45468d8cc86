// Each model_type's features and parameter counts, from published configurations.
#include <gtest/gtest.h>

#include <cmath>

#include "spec/model/layout.h"
#include "unit/spec/read_architecture.h"

namespace neap::spec {
namespace {

std::int64_t parameters(const Architecture& a) {
  std::int64_t n = 0;
  for (const FlatUnit& u : flat_layout(a, Head::kLanguageModel))
    for (const Parameter& p : u.parameters) n += p.elements();
  return n;
}

TEST(Features, Llama32) {
  const Architecture a =
      read_architecture(R"({"model_type":"llama","vocab_size":128256,"hidden_size":2048,
    "intermediate_size":8192,"num_hidden_layers":16,"num_attention_heads":32,
    "num_key_value_heads":8,"head_dim":64,"max_position_embeddings":131072,"rms_norm_eps":1e-05,
    "rope_theta":500000.0,"tie_word_embeddings":true,"bos_token_id":128000,
    "eos_token_id":[128001,128008,128009],"rope_scaling":{"factor":32.0,"low_freq_factor":1.0,
    "high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"}})");
  EXPECT_EQ(parameters(a), 1235814400);
  EXPECT_EQ(a.rotary.scaling, Rotary::Scaling::kLlama3);
  EXPECT_EQ(a.rotary.factor, 32);
  EXPECT_EQ(a.rotary.original_max_positions, 8192);
  EXPECT_EQ(a.rotary.dimensions, 64);
  EXPECT_EQ(a.eos_token_ids.size(), 3U);
}

TEST(Features, Qwen3) {
  const Architecture a =
      read_architecture(R"({"model_type":"qwen3","vocab_size":151936,"hidden_size":1024,
    "intermediate_size":3072,"num_hidden_layers":28,"num_attention_heads":16,
    "num_key_value_heads":8,"max_position_embeddings":40960,"rope_theta":1000000,
    "tie_word_embeddings":true,"use_sliding_window":false,"sliding_window":null})");
  EXPECT_EQ(parameters(a), 596049920);
  EXPECT_EQ(a.head_dim, 128);  // not 1024 / 16
  EXPECT_TRUE(a.query_key_norm);
  EXPECT_FALSE(a.attention_bias);
  EXPECT_EQ(a.sliding_window, 0);
  const auto units = flat_layout(a, Head::kLanguageModel);
  EXPECT_EQ(units[1].find(Module::kKeyNorm)->name, "model.layers.0.self_attn.k_norm.weight");
  EXPECT_EQ(units[1].find(Module::kKeyNorm)->shape, std::vector<std::int64_t>{128});
  EXPECT_EQ(read_architecture(R"({"model_type":"qwen3","head_dim":null})").head_dim,
            128);  // 4096 / 32
  EXPECT_EQ(
      read_architecture(R"({"model_type":"qwen3","head_dim":null,"hidden_size":2048})").head_dim,
      64);
}

TEST(Features, GptNeox) {
  // Pythia-160m.
  const Architecture a =
      read_architecture(R"({"model_type":"gpt_neox","vocab_size":50304,"hidden_size":768,
    "intermediate_size":3072,"num_hidden_layers":12,"num_attention_heads":12,"hidden_act":"gelu",
    "max_position_embeddings":2048,"rotary_pct":0.25,"rotary_emb_base":10000,
    "use_parallel_residual":true,"bos_token_id":0,"eos_token_id":0})");
  EXPECT_EQ(parameters(a), 162322944);
  EXPECT_TRUE(a.parallel_residual);
  EXPECT_EQ(a.qkv, QkvLayout::kPerHead);
  EXPECT_EQ(a.rotary.dimensions, 16);
  EXPECT_EQ(a.norm, NormKind::kLayerNorm);
  EXPECT_EQ(a.activation, Activation::kGelu);
  EXPECT_FALSE(a.gated);
  EXPECT_EQ(flat_layout(a, Head::kLanguageModel).back().parameters.back().name, "embed_out.weight");
  Json c = {{"model_type", "gpt_neox"}, {"hidden_act", "gelu_fast"}};
  EXPECT_EQ(read_architecture(c).activation, Activation::kGeluTanh);
  EXPECT_EQ(read_architecture(c).rotary.dimensions, 24);  // of 96
  c["rope_theta"] = 5;
  c["partial_rotary_factor"] = 1;
  EXPECT_EQ(read_architecture(c).rotary.theta, 10000);
  EXPECT_EQ(read_architecture(c).rotary.dimensions, 24);
  c["rope_parameters"] = {{"rope_theta", 7}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(read_architecture(c).rotary.theta, 7);
  EXPECT_EQ(read_architecture(c).rotary.dimensions, 48);
}

TEST(Features, Gemma) {
  const Architecture a = read_architecture(R"({"model_type":"gemma","hidden_size":2048,
    "intermediate_size":16384,"num_hidden_layers":18,"num_attention_heads":8,
    "num_key_value_heads":1,"head_dim":256,"hidden_act":"gelu"})");
  EXPECT_EQ(parameters(a), 2506172416);
  EXPECT_EQ(a.norm, NormKind::kRmsOffset);
  EXPECT_EQ(a.activation, Activation::kGeluTanh);
  EXPECT_EQ(a.embedding_scale, std::sqrt(2048.0));
  EXPECT_TRUE(a.tie_word_embeddings);
  EXPECT_EQ(a.pad_token_id, 0);
  EXPECT_EQ(a.bos_token_id, 2);
  EXPECT_EQ(a.eos_token_ids, std::vector<std::int64_t>{1});
  EXPECT_EQ(a.sliding_window, 0);
}

TEST(Features, Gemma2) {
  const Architecture a =
      read_architecture(R"({"model_type":"gemma2"})");  // the class's defaults: gemma-2-2b
  EXPECT_EQ(parameters(a), 2614341888);
  EXPECT_TRUE(a.placement.before);
  EXPECT_TRUE(a.placement.after);
  EXPECT_EQ(a.attention_scale, 1.0 / 16);
  EXPECT_EQ(a.attention_softcap, 50);
  EXPECT_EQ(a.logit_softcap, 30);
  EXPECT_EQ(a.sliding_window, 4096);
  EXPECT_EQ(a.window_of(0), 4096);
  EXPECT_EQ(a.window_of(1), 0);
  EXPECT_EQ(a.activation, Activation::kGeluTanh);
  const auto units = flat_layout(a, Head::kLanguageModel);
  EXPECT_EQ(units[1].find(Module::kMlpNorm)->name,
            "model.layers.0.pre_feedforward_layernorm.weight");
  EXPECT_EQ(units[1].parameters.back().name, "model.layers.0.post_feedforward_layernorm.weight");
  const Architecture plain =
      read_architecture(R"({"model_type":"gemma2","attn_logit_softcapping":null,
    "final_logit_softcapping":null,"sliding_window":null,"hidden_act":"relu"})");
  EXPECT_EQ(plain.attention_softcap, 0);
  EXPECT_EQ(plain.logit_softcap, 0);
  EXPECT_EQ(plain.sliding_window, 0);
  EXPECT_EQ(plain.activation, Activation::kGeluTanh);  // the key is hidden_activation
}

}  // namespace
}  // namespace neap::spec
