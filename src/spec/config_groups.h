// Keys that many model types share. Each function reads one group with the defaults of the caller's
// class.
#pragma once

#include <functional>

#include "spec/architecture_file.h"

namespace neap::spec::architectures {

/// Defaults of the class for the keys vocab_size, hidden_size, intermediate_size,
/// num_hidden_layers, num_attention_heads, num_key_value_heads and max_position_embeddings.
struct Sizes {
  std::int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0;
  std::int64_t key_value_heads = 0;  ///< 0: as many as heads, and so for null
  std::int64_t positions = 0;
};
void read_sizes(Fields& f, Architecture& a, const Sizes& defaults);
/// `head_dim`; null and, for missing 0, an absent key mean hidden_size / num_attention_heads.
void read_head_dim(Fields& f, Architecture& a, std::int64_t missing);
/// head_dim = hidden_size / num_attention_heads, which must divide.
void derive_head_dim(Fields& f, Architecture& a, const char* hidden_key, const char* heads_key);

/// One of silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu.
[[nodiscard]] Activation read_activation(Fields& f, const char* key, const char* missing);
/// bos_token_id, eos_token_id (an id or a list) and pad_token_id; -1 where the class has none.
struct TokenIds {
  std::int64_t pad = -1, bos = -1, eos = -1;
};
void read_tokens(Fields& f, Architecture& a, const TokenIds& defaults);
/// Those that the object has; the others stay. generation_config.json is read so.
void read_given_tokens(Fields& f, Architecture& a);

/// rope_parameters, rope_scaling and the older top-level keys.
struct RotaryKeys {
  const char* theta = "rope_theta";  ///< top-level key; a value inside the object wins
  double default_theta = 10000;
  const char* partial = "partial_rotary_factor";
  double default_partial = 1;
  /// The model turns the first part of a head's dimensions and passes the others. Else rope_type
  /// "default" ignores the factor.
  bool slices = false;
  /// Default of the class's top-level original_max_position_embeddings; 0: it has no such key.
  std::int64_t original_positions = 0;
  bool longrope_aliases = false;  ///< types "su" and "yarn" mean longrope, as in older files
};
void read_rotary(Fields& f, Architecture& a, const RotaryKeys& keys = {});
/// The same where layers that slide turn differently: an object for each kind of layer, or one, which is
/// the other layers'.
void read_rotary_by_layer(Fields& f, Architecture& a, const RotaryKeys& full,
                          const RotaryKeys& sliding);

/// `sliding_window` (null: none) and the layers that slide: by `layer_types` if the file has them,
/// else those for which `slides` says so.
void read_window(Fields& f, Architecture& a, std::optional<std::int64_t> missing,
                 const std::function<bool(std::int64_t layer)>& slides);
/// Sets the window of the layers for which `slides` says so.
void set_window(Architecture& a, std::optional<std::int64_t> window,
                const std::function<bool(std::int64_t layer)>& slides);
/// As read_window where `use_sliding_window` is true; else no layer slides.
void read_switched_window(Fields& f, Architecture& a, std::optional<std::int64_t> missing,
                          const std::function<bool(std::int64_t layer)>& slides);
/// Qwen2's and Qwen3's, with max_window_layers.
void read_qwen_window(Fields& f, Architecture& a);

/// What all of Gemma's generations have: scaled embeddings, norms that add one to their weight.
void read_gemma(Fields& f, Architecture& a);
/// And since the second: norms before and after, the scale of the scores, caps (these without a key).
struct Caps {
  std::optional<double> scores, logits;
};
void read_gemma2(Fields& f, Architecture& a, const Caps& missing);

/// "model.layers.N.self_attn.q_proj" and so on: what Llama's names became the standard of.
[[nodiscard]] constexpr ModuleNames llama_names() {
  return {{Module::kTokenEmbedding, "model.embed_tokens"},
          {Module::kAttentionNorm, "input_layernorm"},
          {Module::kQuery, "self_attn.q_proj"},
          {Module::kKey, "self_attn.k_proj"},
          {Module::kValue, "self_attn.v_proj"},
          {Module::kQueryNorm, "self_attn.q_norm"},
          {Module::kKeyNorm, "self_attn.k_norm"},
          {Module::kAttentionOut, "self_attn.o_proj"},
          {Module::kMlpNorm, "post_attention_layernorm"},
          {Module::kGate, "mlp.gate_proj"},
          {Module::kUp, "mlp.up_proj"},
          {Module::kDown, "mlp.down_proj"},
          {Module::kFinalNorm, "model.norm"},
          {Module::kLmHead, "lm_head"},
          {Module::kScore, "score"}};
}

/// Llama's with a norm behind each half; `before`: besides the one before it, else in its place.
[[nodiscard]] constexpr ModuleNames names_with_norms_behind(bool before) {
  const ModuleNames names =
      llama_names().with({{Module::kAttentionAfterNorm, "post_attention_layernorm"},
                          {Module::kMlpAfterNorm, "post_feedforward_layernorm"}});
  return before ? names.with({{Module::kMlpNorm, "pre_feedforward_layernorm"}}) : names;
}

}  // namespace neap::spec::architectures
