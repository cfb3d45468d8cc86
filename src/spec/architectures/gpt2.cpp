#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  a.vocab_size = f.integer("vocab_size", 50257, {.high = kMaxVocab});
  a.hidden_size = f.integer("n_embd", 768);
  const std::int64_t inner = 4 * a.hidden_size;
  a.intermediate_size =
      f.integer_or_null("n_inner", inner, {.high = 4 * kMaxWidth}).value_or(inner);
  a.num_hidden_layers = f.integer("n_layer", 12, {.high = kMaxLayers});
  a.num_attention_heads = f.integer("n_head", 12);
  a.num_key_value_heads = a.num_attention_heads;
  a.max_position_embeddings = f.integer("n_positions", 1024, {.high = kMaxPositions});
  derive_head_dim(f, a, "n_embd", "n_head");
  a.learned_positions = true;
  a.norm = NormKind::kLayerNorm;
  a.norm_eps = f.number("layer_norm_epsilon", 1e-5);
  a.qkv = QkvLayout::kInTurn;
  a.input_major = true;
  a.gated = false;
  a.activation = read_activation(f, "activation_function", "gelu_new");
  a.attention_bias = a.attention_output_bias = a.mlp_bias = true;
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
  if (!f.boolean("scale_attn_weights", true)) a.attention_scale = 1;
  if (f.boolean("scale_attn_by_inverse_layer_idx", false))
    f.refuse("scale_attn_by_inverse_layer_idx", "is true, which is not supported");
  if (f.boolean("add_cross_attention", false))
    f.refuse("add_cross_attention", "is true, which is not supported");
  read_tokens(f, a, {.bos = 50256, .eos = 50256});
}

}  // namespace

extern const ArchitectureFile gpt2 = {.model_type = "gpt2",
                                      .language_model_class = "GPT2LMHeadModel",
                                      .scalar_class = "GPT2ForSequenceClassification",
                                      .read = read,
                                      .blocks = "transformer.h",
                                      .names = {{Module::kTokenEmbedding, "transformer.wte"},
                                                {Module::kPositionEmbedding, "transformer.wpe"},
                                                {Module::kAttentionNorm, "ln_1"},
                                                {Module::kQueryKeyValue, "attn.c_attn"},
                                                {Module::kAttentionOut, "attn.c_proj"},
                                                {Module::kMlpNorm, "ln_2"},
                                                {Module::kUp, "mlp.c_fc"},
                                                {Module::kDown, "mlp.c_proj"},
                                                {Module::kFinalNorm, "transformer.ln_f"},
                                                {Module::kLmHead, "lm_head"},
                                                {Module::kScore, "score"}}};

}  // namespace neap::spec::architectures
