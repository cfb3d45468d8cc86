#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void refuse_variants(Fields& f) {
  if (!f.boolean("enable_bias", true)) f.refuse("enable_bias", "is false, which is not supported");
  if (!f.boolean("layer_norm_elementwise_affine", true))
    f.refuse("layer_norm_elementwise_affine", "is false, which is not supported");
}

void read(Fields& f, Architecture& a) {
  a.vocab_size = f.integer("vocab_size", 50272, {.high = kMaxVocab});
  a.hidden_size = f.integer("hidden_size", 768);
  a.intermediate_size = f.integer("ffn_dim", 3072, {.high = 4 * kMaxWidth});
  a.num_hidden_layers = f.integer("num_hidden_layers", 12, {.high = kMaxLayers});
  a.num_attention_heads = f.integer("num_attention_heads", 12);
  a.num_key_value_heads = a.num_attention_heads;
  a.max_position_embeddings = f.integer("max_position_embeddings", 2048, {.high = kMaxPositions});
  derive_head_dim(f, a, "hidden_size", "num_attention_heads");
  a.embedding_dim = f.integer_or_null("word_embed_proj_dim", a.hidden_size).value_or(a.hidden_size);
  a.learned_positions = true;
  a.position_offset = 2;
  a.norm = NormKind::kLayerNorm;
  a.norm_eps = 1e-5;  // fixed; the file has no key for it
  a.gated = false;
  a.activation = read_activation(f, "activation_function", "relu");
  a.attention_bias = a.attention_output_bias = a.mlp_bias = true;
  const bool pre_norm = f.boolean("do_layer_norm_before", true);
  if (!pre_norm) a.placement = {.before = false, .after = false, .over = true};
  a.final_norm = pre_norm && !f.boolean("_remove_final_layer_norm", false);
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
  refuse_variants(f);
  read_tokens(f, a, {.pad = 1, .bos = 2, .eos = 2});
}

}  // namespace

extern const ArchitectureFile opt = {
    .model_type = "opt",
    .language_model_class = "OPTForCausalLM",
    .scalar_class = "OPTForSequenceClassification",
    .read = read,
    .blocks = "model.decoder.layers",
    .names = {{Module::kTokenEmbedding, "model.decoder.embed_tokens"},
              {Module::kPositionEmbedding, "model.decoder.embed_positions"},
              {Module::kProjectIn, "model.decoder.project_in"},
              {Module::kAttentionNorm, "self_attn_layer_norm"},
              {Module::kQuery, "self_attn.q_proj"},
              {Module::kKey, "self_attn.k_proj"},
              {Module::kValue, "self_attn.v_proj"},
              {Module::kAttentionOut, "self_attn.out_proj"},
              {Module::kAttentionAfterNorm, "self_attn_layer_norm"},
              {Module::kMlpNorm, "final_layer_norm"},
              {Module::kUp, "fc1"},
              {Module::kDown, "fc2"},
              {Module::kMlpAfterNorm, "final_layer_norm"},
              {Module::kFinalNorm, "model.decoder.final_layer_norm"},
              {Module::kProjectOut, "model.decoder.project_out"},
              {Module::kLmHead, "lm_head"},
              {Module::kScore, "score"}}};

}  // namespace neap::spec::architectures
