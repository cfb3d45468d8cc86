#include "spec/model/config_groups.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::spec::architectures {
namespace {

// A token id; negative if there is none.
std::int64_t token(Fields& f, const char* key, const Json& v) {
  if (v.is_null()) return -1;
  if (!v.is_number_integer() ||
      (v.is_number_unsigned() && v.get<std::uint64_t>() > std::uint64_t{1} << 31)) {
    f.fail(key, "is not a token id or a list of them");
    return -1;
  }
  return std::max<std::int64_t>(v.get<std::int64_t>(), -1);
}

}  // namespace

void read_sizes(Fields& f, Architecture& a, const Sizes& defaults) {
  a.vocab_size = f.integer("vocab_size", defaults.vocab, {.high = kMaxVocab});
  a.hidden_size = f.integer("hidden_size", defaults.hidden);
  a.intermediate_size =
      f.integer("intermediate_size", defaults.intermediate, {.high = 4 * kMaxWidth});
  a.num_hidden_layers = f.integer("num_hidden_layers", defaults.layers, {.high = kMaxLayers});
  a.num_attention_heads = f.integer("num_attention_heads", defaults.heads);
  const std::int64_t groups =
      defaults.key_value_heads > 0 ? defaults.key_value_heads : a.num_attention_heads;
  a.num_key_value_heads =
      f.integer_or_null("num_key_value_heads", groups).value_or(a.num_attention_heads);
  a.max_position_embeddings =
      f.integer("max_position_embeddings", defaults.positions, {.high = kMaxPositions});
}

void derive_head_dim(Fields& f, Architecture& a, const char* hidden_key, const char* heads_key) {
  if (a.hidden_size % a.num_attention_heads != 0)
    f.fail(hidden_key, format("{} is not a multiple of {} {}", a.hidden_size, heads_key,
                              a.num_attention_heads));
  a.head_dim = std::max<std::int64_t>(a.hidden_size / a.num_attention_heads, 1);
}

void read_head_dim(Fields& f, Architecture& a, std::int64_t missing) {
  const std::optional<std::int64_t> given = f.integer_or_null(
      "head_dim", missing > 0 ? std::optional<std::int64_t>(missing) : std::nullopt);
  if (given)
    a.head_dim = *given;
  else
    derive_head_dim(f, a, "hidden_size", "num_attention_heads");
}

Activation read_activation(Fields& f, const char* key, const char* missing) {
  const std::string name = f.text(key, missing);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  f.refuse(key, format("is \"{}\"; supported are silu, gelu, gelu_new, gelu_pytorch_tanh, "
                       "gelu_fast and relu",
                       name));
  return Activation::kSilu;
}

void read_given_tokens(Fields& f, Architecture& a) {
  if (f.has("pad_token_id")) a.pad_token_id = token(f, "pad_token_id", f.value("pad_token_id"));
  if (f.has("bos_token_id")) a.bos_token_id = token(f, "bos_token_id", f.value("bos_token_id"));
  if (!f.has("eos_token_id")) return;
  const Json& eos = f.value("eos_token_id");
  a.eos_token_ids.clear();
  const Json list = eos.is_array() ? eos : Json::array({eos});
  for (const Json& id : list)
    if (const std::int64_t t = token(f, "eos_token_id", id); t >= 0) a.eos_token_ids.push_back(t);
}

void read_tokens(Fields& f, Architecture& a, const TokenIds& defaults) {
  a.pad_token_id = defaults.pad;
  a.bos_token_id = defaults.bos;
  if (defaults.eos >= 0) a.eos_token_ids = {defaults.eos};
  read_given_tokens(f, a);
}

void set_window(Architecture& a, std::optional<std::int64_t> window,
                const std::function<bool(std::int64_t layer)>& slides) {
  std::vector<bool> layers;
  for (std::int64_t i = 0; i < a.num_hidden_layers; ++i) layers.push_back(slides(i));
  if (!window || std::find(layers.begin(), layers.end(), true) == layers.end()) return;
  a.sliding_window = *window;
  a.sliding_layers = std::move(layers);
}

void read_window(Fields& f, Architecture& a, std::optional<std::int64_t> missing,
                 const std::function<bool(std::int64_t layer)>& slides) {
  const std::optional<std::int64_t> window =
      f.integer_or_null("sliding_window", missing, {.high = kMaxPositions});
  if (!f.has("layer_types") || f.is_null("layer_types")) return set_window(a, window, slides);
  const Json& types = f.value("layer_types");
  if (!types.is_array() || types.size() != static_cast<std::size_t>(a.num_hidden_layers))
    return f.fail("layer_types", format("is not a list of {} layers", a.num_hidden_layers));
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      f.refuse("layer_types",
               format("has {}; supported are full_attention and sliding_attention", type.dump()));
  }
  set_window(a, window, [&](std::int64_t layer) {
    return types[static_cast<std::size_t>(layer)] == "sliding_attention";
  });
}

void read_switched_window(Fields& f, Architecture& a, std::optional<std::int64_t> missing,
                          const std::function<bool(std::int64_t layer)>& slides) {
  const bool on = f.boolean("use_sliding_window", false);
  read_window(f, a, missing, slides);
  if (on) return;
  a.sliding_window = 0;
  a.sliding_layers.clear();
}

void read_qwen_window(Fields& f, Architecture& a) {
  const std::int64_t full = f.integer("max_window_layers", 28, {.low = 0, .high = kMaxPositions});
  read_switched_window(f, a, 4096, [full](std::int64_t layer) { return layer >= full; });
}

void read_gemma(Fields& f, Architecture& a) {
  a.embedding_scale = std::sqrt(static_cast<double>(a.hidden_size));
  a.norm = NormKind::kRmsOffset;
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.attention_bias = a.attention_output_bias = f.boolean("attention_bias", false);
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
}

void read_gemma2(Fields& f, Architecture& a, const Caps& missing) {
  read_gemma(f, a);
  a.placement = {.before = true, .after = true, .over = false};
  a.activation = read_activation(f, "hidden_activation", "gelu_pytorch_tanh");
  a.attention_scale = 1 / std::sqrt(f.positive("query_pre_attn_scalar", 256));
  a.attention_softcap = f.positive_or_null("attn_logit_softcapping", missing.scores).value_or(0);
  a.logit_softcap = f.positive_or_null("final_logit_softcapping", missing.logits).value_or(0);
  if (!f.is_null("use_bidirectional_attention") && f.boolean("use_bidirectional_attention", false))
    f.refuse("use_bidirectional_attention", "is true, which is not supported");
}

}  // namespace neap::spec::architectures
