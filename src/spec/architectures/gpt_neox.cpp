#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  a.vocab_size = f.integer("vocab_size", 50432, {.high = kMaxVocab});
  a.hidden_size = f.integer("hidden_size", 6144);
  a.intermediate_size = f.integer("intermediate_size", 24576, {.high = 4 * kMaxWidth});
  a.num_hidden_layers = f.integer("num_hidden_layers", 44, {.high = kMaxLayers});
  a.num_attention_heads = f.integer("num_attention_heads", 64);
  a.num_key_value_heads = a.num_attention_heads;
  a.max_position_embeddings = f.integer("max_position_embeddings", 2048, {.high = kMaxPositions});
  derive_head_dim(f, a, "hidden_size", "num_attention_heads");
  a.norm = NormKind::kLayerNorm;
  a.norm_eps = f.number("layer_norm_eps", 1e-5);
  a.parallel_residual = f.boolean("use_parallel_residual", true);
  a.qkv = QkvLayout::kPerHead;
  a.gated = false;
  a.activation = read_activation(f, "hidden_act", "gelu");
  a.attention_bias = a.attention_output_bias = f.boolean("attention_bias", true);
  a.mlp_bias = true;
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rotary(f, a,
              {.theta = "rotary_emb_base",
               .partial = "rotary_pct",
               .default_partial = 0.25,
               .slices = true});
  read_tokens(f, a, {.bos = 0, .eos = 2});
}

}  // namespace

extern const ArchitectureFile gpt_neox = {
    .model_type = "gpt_neox",
    .language_model_class = "GPTNeoXForCausalLM",
    .scalar_class = "GPTNeoXForSequenceClassification",
    .read = read,
    .blocks = "gpt_neox.layers",
    .names = {{Module::kTokenEmbedding, "gpt_neox.embed_in"},
              {Module::kAttentionNorm, "input_layernorm"},
              {Module::kQueryKeyValue, "attention.query_key_value"},
              {Module::kAttentionOut, "attention.dense"},
              {Module::kMlpNorm, "post_attention_layernorm"},
              {Module::kUp, "mlp.dense_h_to_4h"},
              {Module::kDown, "mlp.dense_4h_to_h"},
              {Module::kFinalNorm, "gpt_neox.final_layer_norm"},
              {Module::kLmHead, "embed_out"},
              {Module::kScore, "score"}}};

}  // namespace neap::spec::architectures
