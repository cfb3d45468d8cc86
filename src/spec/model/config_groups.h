// Configuration keys that many model types share. Each function reads one group; the caller passes
// its class's defaults.
#pragma once

#include <functional>

#include "spec/model/architecture_file.h"

namespace neap::spec::architectures {

/// The class's defaults for vocab_size, hidden_size, intermediate_size, num_hidden_layers,
/// num_attention_heads, num_key_value_heads and max_position_embeddings.
struct Sizes {
  std::int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0;
  std::int64_t key_value_heads = 0;  ///< 0: same as heads; null in the file also means that
  std::int64_t positions = 0;
};
void read_sizes(Fields& f, Architecture& a, const Sizes& defaults);
/// Reads `head_dim`. Null means hidden_size / num_attention_heads. So does an absent key if
/// `missing` is 0.
void read_head_dim(Fields& f, Architecture& a, std::int64_t missing);
/// Sets head_dim to hidden_size / num_attention_heads. Fails if the division has a remainder.
void derive_head_dim(Fields& f, Architecture& a, const char* hidden_key, const char* heads_key);

/// Accepts silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast and relu.
[[nodiscard]] Activation read_activation(Fields& f, const char* key, const char* missing);
/// bos_token_id, eos_token_id (an id or a list) and pad_token_id; -1 if the class has no default.
struct TokenIds {
  std::int64_t pad = -1, bos = -1, eos = -1;
};
void read_tokens(Fields& f, Architecture& a, const TokenIds& defaults);
/// Reads only the ids that the object has, as generation_config.json needs.
void read_given_tokens(Fields& f, Architecture& a);

/// Defaults for rope_parameters, rope_scaling and the older top-level keys.
struct RotaryKeys {
  const char* theta = "rope_theta";  ///< top-level key; a value inside the object takes precedence
  double default_theta = 10000;
  const char* partial = "partial_rotary_factor";
  double default_partial = 1;
  /// Whether the model rotates only the first dimensions of a head. Otherwise rope_type "default"
  /// ignores the factor.
  bool slices = false;
  /// The class's default for the top-level original_max_position_embeddings; 0: no such key.
  std::int64_t original_positions = 0;
  bool longrope_aliases = false;  ///< rope types "su" and "yarn" mean longrope, as in older files
};
void read_rotary(Fields& f, Architecture& a, const RotaryKeys& keys = {});
/// As above, for models whose sliding layers have their own settings. The file has one object per
/// kind of layer, or one object, which applies to the other layers.
void read_rotary_by_layer(Fields& f, Architecture& a, const RotaryKeys& full,
                          const RotaryKeys& sliding);

/// Reads `sliding_window` (null: none) and the sliding layers: from `layer_types` if the file has
/// it, else from `slides`.
void read_window(Fields& f, Architecture& a, std::optional<std::int64_t> missing,
                 const std::function<bool(std::int64_t layer)>& slides);
/// Sets the window, for layers where `slides` returns true.
void set_window(Architecture& a, std::optional<std::int64_t> window,
                const std::function<bool(std::int64_t layer)>& slides);
/// As read_window if `use_sliding_window` is true. Otherwise no layer slides.
void read_switched_window(Fields& f, Architecture& a, std::optional<std::int64_t> missing,
                          const std::function<bool(std::int64_t layer)>& slides);
/// Reads the window of Qwen2 and Qwen3, which have max_window_layers.
void read_qwen_window(Fields& f, Architecture& a);

/// Common to all Gemma versions: scaled embeddings, and norms that add one to their weight.
void read_gemma(Fields& f, Architecture& a);
/// Since Gemma 2: norms before and after, the scale of the scores, soft caps (these defaults have
/// no key).
struct Caps {
  std::optional<double> scores, logits;
};
void read_gemma2(Fields& f, Architecture& a, const Caps& missing);

/// Llama's names, which many model types use: "model.layers.N.self_attn.q_proj" and so on.
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

/// Llama's names with a norm after each sublayer. `before`: there is also one before it.
[[nodiscard]] constexpr ModuleNames names_with_norms_behind(bool before) {
  const ModuleNames names =
      llama_names().with({{Module::kAttentionAfterNorm, "post_attention_layernorm"},
                          {Module::kMlpAfterNorm, "post_feedforward_layernorm"}});
  return before ? names.with({{Module::kMlpNorm, "pre_feedforward_layernorm"}}) : names;
}

}  // namespace neap::spec::architectures
