#include "spec/config_groups.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::spec::architectures {
namespace {

// The object with rotary settings: a rope_scaling that says anything replaces rope_parameters.
const char* rotary_object(Fields& f) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!f.has(key) || f.is_null(key)) continue;
    if (!f.value(key).is_object()) {
      f.fail(key, "is not an object");
      return nullptr;
    }
    if (!f.value(key).empty()) return key;
  }
  return nullptr;
}

double bounded(Fields& f, const char* key, double missing) {
  // Whatever is in these bounds gives finite frequencies.
  constexpr double kLow = 1e-6;
  constexpr double kHigh = 1e18;
  const double v = f.positive(key, missing);
  if (v < kLow || v > kHigh) f.fail(key, format("is {}; it can be {} to {}", v, kLow, kHigh));
  return std::clamp(v, kLow, kHigh);
}

// `factor`, which its kind cannot do without.
double required(Fields& f, const char* key) {
  if (!f.has(key)) f.fail(key, "is missing");
  return bounded(f, key, 1);
}

std::int64_t original_positions(Fields& top, Fields& f, const Architecture& a) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const Range range{.high = kMaxPositions};
  if (top.has(kKey)) return top.integer(kKey, 1, range);
  return f.integer(kKey, a.max_position_embeddings, range);
}

void read_yarn(Fields& f, Rotary& r, std::int64_t positions) {
  if (!f.has("factor")) f.fail("factor", "is missing");
  const double ratio =
      static_cast<double>(positions) / static_cast<double>(r.original_max_positions);
  r.factor = f.is_null("factor") ? ratio : bounded(f, "factor", 1);
  r.attention_factor = f.positive_or_null("attention_factor", std::nullopt).value_or(0);
  // Zero and null mean the default, as for Hugging Face.
  const auto given = [&f](const char* key, double fallback) {
    const double v = f.is_null(key) ? 0 : f.number(key, 0);
    if (v < 0) f.fail(key, format("is {}; it cannot be negative", v));
    return v > 0 ? v : fallback;
  };
  r.beta_fast = given("beta_fast", 32);
  r.beta_slow = given("beta_slow", 1);
  r.mscale = given("mscale", 0);
  r.mscale_all_dim = given("mscale_all_dim", 0);
  r.truncate = f.boolean("truncate", true);
  if (r.theta <= 1) f.fail("rope_theta", format("is {}; yarn needs more than 1", r.theta));
}

void read_scaling(Fields& top, Fields& f, Architecture& a, const std::string& type) {
  Rotary& r = a.rotary;
  if (type == "default") return;
  if (type == "linear") {
    r.scaling = Rotary::Scaling::kLinear;
    r.factor = required(f, "factor");
  } else if (type == "dynamic") {
    r.scaling = Rotary::Scaling::kDynamic;
    r.factor = required(f, "factor");
    r.original_max_positions = a.max_position_embeddings;
  } else if (type == "yarn") {
    r.scaling = Rotary::Scaling::kYarn;
    r.original_max_positions = original_positions(top, f, a);
    read_yarn(f, r, a.max_position_embeddings);
  } else if (type == "llama3") {
    r.scaling = Rotary::Scaling::kLlama3;
    r.factor = required(f, "factor");
    r.low_frequency_factor = required(f, "low_freq_factor");
    r.high_frequency_factor = required(f, "high_freq_factor");
    r.original_max_positions = original_positions(top, f, a);
    if (r.high_frequency_factor <= r.low_frequency_factor)
      f.fail("high_freq_factor", format("is {}; it must be over low_freq_factor {}",
                                        r.high_frequency_factor, r.low_frequency_factor));
  } else {
    f.refuse("rope_type", format("is \"{}\"; supported are default, linear, dynamic, yarn and "
                                 "llama3",
                                 type));
  }
}

// Which dimensions of a head turn.
void read_rotary_dimensions(Fields& f, Architecture& a, const RotaryKeys& keys, double partial) {
  if (partial <= 0 || partial > 1)
    return f.fail(keys.partial, format("is {}; it can be over 0 and up to 1", partial));
  Rotary& r = a.rotary;
  const bool whole = r.scaling == Rotary::Scaling::kNone && !keys.slices;
  r.dimensions =
      whole ? a.head_dim : static_cast<std::int64_t>(static_cast<double>(a.head_dim) * partial);
  if (r.dimensions != a.head_dim && !keys.slices)
    f.refuse(keys.partial, format("is {}: this model_type turns whole heads", partial));
  if (r.dimensions < 2 || r.dimensions % 2 != 0)
    f.fail("head_dim", format("is {}: {} rotary dimensions; they must be even and not 0",
                              a.head_dim, r.dimensions));
}

// A token id; negative where there is none.
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

namespace {

// One kind of layer's settings, from its object and the older top-level keys.
void read_one_rotary(Fields& f, Fields& inner, Architecture& a, const RotaryKeys& keys) {
  a.rotary.theta = inner.has("rope_theta") ? bounded(inner, "rope_theta", 1)
                                           : bounded(f, keys.theta, keys.default_theta);
  read_scaling(f, inner, a, inner.text("rope_type", inner.text("type", "default")));
  const double partial = inner.has("partial_rotary_factor")
                             ? inner.number("partial_rotary_factor", 1)
                             : f.number(keys.partial, keys.default_partial);
  read_rotary_dimensions(f, a, keys, partial);
}

bool differs_by_layer(const Fields& inner) {
  return inner.has("full_attention") || inner.has("sliding_attention");
}

const Json kNoSettings = Json::object();

}  // namespace

void read_rotary(Fields& f, Architecture& a, const RotaryKeys& keys) {
  const char* key = rotary_object(f);
  Fields inner = key != nullptr ? f.object(key) : Fields(kNoSettings, "");
  if (differs_by_layer(inner)) f.refuse(key, "differs between layers, which is not supported");
  read_one_rotary(f, inner, a, keys);
  f.absorb(inner);
}

void read_rotary_by_layer(Fields& f, Architecture& a, const RotaryKeys& full,
                          const RotaryKeys& sliding) {
  const char* key = rotary_object(f);
  Fields outer = key != nullptr ? f.object(key) : Fields(kNoSettings, "");
  const bool flat = !differs_by_layer(outer);  // then it says nothing of sliding layers
  const auto read = [&](const char* kind, const RotaryKeys& keys) {
    Rotary before = std::exchange(a.rotary, {});
    if (flat && std::string_view(kind) == "full_attention") {
      read_one_rotary(f, outer, a, keys);
    } else {
      const bool given = !flat && outer.has(kind) && !outer.is_null(kind);
      Fields inner = given ? outer.object(kind) : Fields(kNoSettings, "");
      read_one_rotary(f, inner, a, keys);
      outer.absorb(inner);
    }
    return std::exchange(a.rotary, std::move(before));
  };
  a.sliding_rotary = read("sliding_attention", sliding);
  a.rotary = read("full_attention", full);
  f.absorb(outer);
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
