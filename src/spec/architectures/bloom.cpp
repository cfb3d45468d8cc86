#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  a.vocab_size = f.integer("vocab_size", 250880, {.high = kMaxVocab});
  const char* width = f.has("n_embed") ? "n_embed" : "hidden_size";  // older files
  const char* layers = f.has("num_hidden_layers") ? "num_hidden_layers" : "n_layer";
  const char* heads = f.has("num_attention_heads") ? "num_attention_heads" : "n_head";
  a.hidden_size = f.integer(width, 64);
  a.intermediate_size = 4 * a.hidden_size;
  a.num_hidden_layers = f.integer(layers, 2, {.high = kMaxLayers});
  a.num_attention_heads = f.integer(heads, 8);
  a.num_key_value_heads = a.num_attention_heads;
  a.max_position_embeddings = kMaxPositions;  // the format has no limit
  derive_head_dim(f, a, width, heads);
  a.embedding_norm = true;
  a.alibi = true;
  a.norm = NormKind::kLayerNorm;
  a.norm_eps = f.number("layer_norm_epsilon", 1e-5);
  if (f.boolean("apply_residual_connection_post_layernorm", false))
    f.refuse("apply_residual_connection_post_layernorm", "is true, which is not supported");
  a.qkv = QkvLayout::kPerHead;
  a.gated = false;
  a.activation = Activation::kGeluTanh;
  a.attention_bias = a.attention_output_bias = a.mlp_bias = true;
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
  read_tokens(f, a, {.bos = 1, .eos = 2});
}

}  // namespace

extern const ArchitectureFile bloom = {
    .model_type = "bloom",
    .language_model_class = "BloomForCausalLM",
    .scalar_class = "BloomForSequenceClassification",
    .read = read,
    .blocks = "transformer.h",
    .names = {{Module::kTokenEmbedding, "transformer.word_embeddings"},
              {Module::kEmbeddingNorm, "transformer.word_embeddings_layernorm"},
              {Module::kAttentionNorm, "input_layernorm"},
              {Module::kQueryKeyValue, "self_attention.query_key_value"},
              {Module::kAttentionOut, "self_attention.dense"},
              {Module::kMlpNorm, "post_attention_layernorm"},
              {Module::kUp, "mlp.dense_h_to_4h"},
              {Module::kDown, "mlp.dense_4h_to_h"},
              {Module::kFinalNorm, "transformer.ln_f"},
              {Module::kLmHead, "lm_head"},
              {Module::kScore, "score"}}};

}  // namespace neap::spec::architectures
