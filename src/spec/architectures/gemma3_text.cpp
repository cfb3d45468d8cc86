#include <cmath>

#include "spec/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 262208,
              .hidden = 2304,
              .intermediate = 9216,
              .layers = 26,
              .heads = 8,
              .key_value_heads = 4,
              .positions = 131072});
  read_head_dim(f, a, 256);
  a.embedding_scale = std::sqrt(static_cast<double>(a.hidden_size));
  a.norm = NormKind::kRmsOffset;
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.placement = {.before = true, .after = true, .over = false};
  a.activation = read_activation(f, "hidden_activation", "gelu_pytorch_tanh");
  a.attention_bias = a.attention_output_bias = f.boolean("attention_bias", false);
  a.query_key_norm = true;
  a.attention_scale = 1 / std::sqrt(f.positive("query_pre_attn_scalar", 256));
  a.attention_softcap = f.positive_or_null("attn_logit_softcapping", std::nullopt).value_or(0);
  a.logit_softcap = f.positive_or_null("final_logit_softcapping", std::nullopt).value_or(0);
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
  if (!f.is_null("use_bidirectional_attention") && f.boolean("use_bidirectional_attention", false))
    f.refuse("use_bidirectional_attention", "is true, which is not supported");
  read_rotary_by_layer(f, a, {.default_theta = 1000000},
                       {.theta = "rope_local_base_freq", .default_theta = 10000});
  // The layers that slide turn by their own angles: without a window they cannot be told.
  if (f.has("sliding_window") && f.is_null("sliding_window"))
    f.refuse("sliding_window", "is null, which is not supported");
  const std::int64_t pattern = f.integer("sliding_window_pattern", 6);
  read_window(f, a, 4096, [pattern](std::int64_t layer) { return (layer + 1) % pattern != 0; });
  read_tokens(f, a, {.pad = 0, .bos = 2, .eos = 1});
}

}  // namespace

extern const ArchitectureFile gemma3_text = {
    .model_type = "gemma3_text",
    .language_model_class = "Gemma3ForCausalLM",
    .scalar_class = "Gemma3TextForSequenceClassification",
    .read = read,
    .base_prefix = "model",
    .blocks = "model.layers",
    .names = {{Module::kTokenEmbedding, "model.embed_tokens"},
              {Module::kAttentionNorm, "input_layernorm"},
              {Module::kQuery, "self_attn.q_proj"},
              {Module::kKey, "self_attn.k_proj"},
              {Module::kValue, "self_attn.v_proj"},
              {Module::kQueryNorm, "self_attn.q_norm"},
              {Module::kKeyNorm, "self_attn.k_norm"},
              {Module::kAttentionOut, "self_attn.o_proj"},
              {Module::kAttentionAfterNorm, "post_attention_layernorm"},
              {Module::kMlpNorm, "pre_feedforward_layernorm"},
              {Module::kGate, "mlp.gate_proj"},
              {Module::kUp, "mlp.up_proj"},
              {Module::kDown, "mlp.down_proj"},
              {Module::kMlpAfterNorm, "post_feedforward_layernorm"},
              {Module::kFinalNorm, "model.norm"},
              {Module::kLmHead, "lm_head"},
              {Module::kScore, "score"}}};

}  // namespace neap::spec::architectures
