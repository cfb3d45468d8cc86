#include "spec/model_shape.h"

#include <algorithm>
#include <optional>

#include "base/file.h"
#include "base/format.h"

namespace neap::spec {
namespace {

// Bounds that keep every product of a hostile config inside 64 bits.
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 26;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 26;

// Reads fields of a config.json; the first failure stays, later reads return their defaults.
class Fields {
 public:
  Fields(const Json& json, std::string_view where) : json_(json), where_(where) {}

  [[nodiscard]] bool has(const char* key) const {
    const auto it = json_.find(key);
    return it != json_.end() && !it->is_null();
  }
  std::int64_t integer(const char* key, std::optional<std::int64_t> fallback, std::int64_t low,
                       std::int64_t high) {
    if (!has(key)) return missing(key, fallback);
    const Json& v = json_[key];
    if (!v.is_number_integer()) return fail(key, "is " + v.dump() + ", not an integer");
    const bool huge = v.is_number_unsigned() && v.get<std::uint64_t>() > (std::uint64_t{1} << 62);
    if (huge || v.get<std::int64_t>() < low || v.get<std::int64_t>() > high)
      return fail(key, format("is {}; it can be {} to {}", v.dump(), low, high));
    return v.get<std::int64_t>();
  }
  double number(const char* key, double fallback) {
    if (!has(key)) return fallback;
    if (!json_[key].is_number()) fail(key, "is " + json_[key].dump() + ", not a number");
    return status_.ok() ? json_[key].get<double>() : fallback;
  }
  bool boolean(const char* key, bool fallback) {
    if (!has(key)) return fallback;
    if (!json_[key].is_boolean()) fail(key, "is " + json_[key].dump() + ", not true or false");
    return status_.ok() ? json_[key].get<bool>() : fallback;
  }
  std::string text(const char* key, const std::string& fallback) {
    if (!has(key)) return fallback;
    if (!json_[key].is_string()) fail(key, "is " + json_[key].dump() + ", not text");
    return status_.ok() ? json_[key].get<std::string>() : fallback;
  }
  // A token id or a list of them.
  std::vector<std::int64_t> tokens(const char* key) {
    std::vector<std::int64_t> out;
    if (!has(key)) return out;
    const Json& value = json_[key];
    for (const Json& v : value.is_array() ? value : Json::array({value})) {
      if (!v.is_number_integer()) {
        fail(key, "has " + v.dump() + ", which is not a token id");
        return {};
      }
      // Some configurations write -1 for "none".
      if (v.get<std::int64_t>() >= 0) out.push_back(v.get<std::int64_t>());
    }
    return out;
  }
  std::int64_t token(const char* key) {
    const std::vector<std::int64_t> all = tokens(key);
    return all.empty() ? -1 : all.front();
  }
  std::int64_t fail(const char* key, std::string what) {
    if (status_.ok())
      status_ = Status(ErrorCode::kInvalidArgument, format("{}: {} {}", where_, key, what));
    return 1;
  }
  void refuse(const char* key, std::string what) {
    if (status_.ok())
      status_ = Status(ErrorCode::kUnsupported, format("{}: {} {}", where_, key, what));
  }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] const Json& json() const { return json_; }

 private:
  std::int64_t missing(const char* key, std::optional<std::int64_t> fallback) {
    return fallback ? *fallback : fail(key, "is missing");
  }
  const Json& json_;
  std::string_view where_;
  Status status_;
};

void read_rope(Fields& f, ModelShape& s) {
  s.rope_theta = f.number("rope_theta", 10000);
  // Newer files keep theta and scaling in one object.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!f.has(key)) continue;
    const Json& rope = f.json()[key];
    if (!rope.is_object()) return void(f.fail(key, "is not an object"));
    Fields inner(rope, key);
    const std::string type = inner.text("rope_type", inner.text("type", "default"));
    s.rope_theta = inner.number("rope_theta", s.rope_theta);
    if (!inner.status().ok()) return void(f.fail(key, inner.status().message()));
    if (type != "default")
      f.refuse(key, "has type \"" + type + "\"; only \"default\" is supported");
  }
}

void read_llama(Fields& f, ModelShape& s) {
  s.family = Family::kLlama;
  s.vocab_size = f.integer("vocab_size", std::nullopt, 1, kMaxVocab);
  s.hidden_size = f.integer("hidden_size", std::nullopt, 1, kMaxWidth);
  s.intermediate_size = f.integer("intermediate_size", std::nullopt, 1, kMaxWidth);
  s.num_hidden_layers = f.integer("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  s.num_attention_heads = f.integer("num_attention_heads", std::nullopt, 1, kMaxWidth);
  s.num_key_value_heads = f.integer("num_key_value_heads", s.num_attention_heads, 1, kMaxWidth);
  s.max_position_embeddings = f.integer("max_position_embeddings", 2048, 1, kMaxPositions);
  if (f.has("head_dim")) {
    s.head_dim = f.integer("head_dim", std::nullopt, 1, kMaxWidth);
  } else {
    if (s.hidden_size % s.num_attention_heads != 0)
      f.fail("hidden_size", format("{} is not a multiple of num_attention_heads {}", s.hidden_size,
                                   s.num_attention_heads));
    s.head_dim = s.hidden_size / s.num_attention_heads;
  }
  if (s.head_dim % 2 != 0) f.fail("head_dim", format("is {}; rotation needs it even", s.head_dim));
  s.norm_eps = f.number("rms_norm_eps", 1e-6);
  s.hidden_act = f.text("hidden_act", "silu");
  if (s.hidden_act != "silu") f.refuse("hidden_act", "is \"" + s.hidden_act + "\", not \"silu\"");
  s.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  const bool qwen = s.model_type == "qwen2";
  s.attention_bias = qwen || f.boolean("attention_bias", false);
  s.attention_output_bias = !qwen && s.attention_bias;
  s.mlp_bias = f.boolean("mlp_bias", false);
  const bool slides = qwen ? f.boolean("use_sliding_window", false) : true;
  if (slides && f.has("sliding_window"))
    s.sliding_window = f.integer("sliding_window", std::nullopt, 1, kMaxPositions);
  read_rope(f, s);
}

void read_gpt2(Fields& f, ModelShape& s) {
  s.family = Family::kGpt2;
  s.vocab_size = f.integer("vocab_size", 50257, 1, kMaxVocab);
  s.hidden_size = f.integer("n_embd", 768, 1, kMaxWidth);
  s.intermediate_size = f.integer("n_inner", 4 * s.hidden_size, 1, 4 * kMaxWidth);
  s.num_hidden_layers = f.integer("n_layer", 12, 1, kMaxLayers);
  s.num_attention_heads = f.integer("n_head", 12, 1, kMaxWidth);
  s.num_key_value_heads = s.num_attention_heads;
  s.max_position_embeddings = f.integer("n_positions", 1024, 1, kMaxPositions);
  if (s.hidden_size % s.num_attention_heads != 0)
    f.fail("n_embd",
           format("{} is not a multiple of n_head {}", s.hidden_size, s.num_attention_heads));
  s.head_dim = s.hidden_size / s.num_attention_heads;
  s.norm_eps = f.number("layer_norm_epsilon", 1e-5);
  s.hidden_act = f.text("activation_function", "gelu_new");
  s.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
  s.attention_bias = s.attention_output_bias = s.mlp_bias = true;
  if (f.boolean("scale_attn_by_inverse_layer_idx", false))
    f.refuse("scale_attn_by_inverse_layer_idx", "is true, which is not supported");
  if (!f.boolean("scale_attn_weights", true))
    f.refuse("scale_attn_weights", "is false, which is not supported");
}

void read_opt(Fields& f, ModelShape& s) {
  s.family = Family::kOpt;
  s.vocab_size = f.integer("vocab_size", 50272, 1, kMaxVocab);
  s.hidden_size = f.integer("hidden_size", 768, 1, kMaxWidth);
  s.intermediate_size = f.integer("ffn_dim", 3072, 1, 4 * kMaxWidth);
  s.num_hidden_layers = f.integer("num_hidden_layers", 12, 1, kMaxLayers);
  s.num_attention_heads = f.integer("num_attention_heads", 12, 1, kMaxWidth);
  s.num_key_value_heads = s.num_attention_heads;
  s.max_position_embeddings = f.integer("max_position_embeddings", 2048, 1, kMaxPositions);
  s.position_offset = 2;
  if (s.hidden_size % s.num_attention_heads != 0)
    f.fail("hidden_size", format("{} is not a multiple of num_attention_heads {}", s.hidden_size,
                                 s.num_attention_heads));
  s.head_dim = s.hidden_size / s.num_attention_heads;
  s.norm_eps = 1e-5;
  s.hidden_act = f.text("activation_function", "relu");
  s.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
  s.attention_bias = s.attention_output_bias = s.mlp_bias = true;
  s.norm_first = f.boolean("do_layer_norm_before", true);
  const std::int64_t width = f.integer("word_embed_proj_dim", s.hidden_size, 1, kMaxWidth);
  s.word_embed_proj_dim = width == s.hidden_size ? 0 : width;
  if (!f.boolean("enable_bias", true)) f.refuse("enable_bias", "is false, which is not supported");
  if (!f.boolean("layer_norm_elementwise_affine", true))
    f.refuse("layer_norm_elementwise_affine", "is false, which is not supported");
  if (f.boolean("_remove_final_layer_norm", false))
    f.refuse("_remove_final_layer_norm", "is true, which is not supported");
}

}  // namespace

Result<ModelShape> ModelShape::from_json(const Json& config, std::string_view where) {
  if (!config.is_object())
    return Status(ErrorCode::kInvalidArgument, format("{}: not a JSON object", where));
  Fields f(config, where);
  ModelShape s;
  s.model_type = f.text("model_type", "");
  if (s.model_type == "llama" || s.model_type == "qwen2" || s.model_type == "mistral") {
    read_llama(f, s);
  } else if (s.model_type == "gpt2") {
    read_gpt2(f, s);
  } else if (s.model_type == "opt") {
    read_opt(f, s);
  } else {
    f.refuse("model_type",
             "is \"" + s.model_type + "\"; supported are llama, qwen2, mistral, gpt2 and opt");
  }
  const auto& act = s.hidden_act;
  if (act != "silu" && act != "relu" && act != "gelu" && act != "gelu_new" &&
      act != "gelu_pytorch_tanh")
    f.refuse("activation_function", "is \"" + act + "\"; supported are silu, relu, gelu, gelu_new");
  s.bos_token_id = f.token("bos_token_id");
  s.eos_token_ids = f.tokens("eos_token_id");
  s.pad_token_id = f.token("pad_token_id");
  NEAP_TRY(f.status());
  if (s.num_attention_heads % s.num_key_value_heads != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  format("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
                         where, s.num_attention_heads, s.num_key_value_heads));
  }
  if (s.num_attention_heads * s.head_dim > kMaxWidth * 16)
    return Status(ErrorCode::kInvalidArgument, format("{}: {} heads of {} are too wide", where,
                                                      s.num_attention_heads, s.head_dim));
  return s;
}

Result<ModelShape> ModelShape::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  NEAP_TRY_ASSIGN(const std::string text, read_file(file, 16_MiB));
  NEAP_TRY_ASSIGN(const Json config, parse_json(text, file.string()));
  return from_json(config, file.string());
}

Json ModelShape::to_json(Head head) const {
  Json j = Json::object();
  const std::string base = family == Family::kGpt2   ? "GPT2"
                           : family == Family::kOpt  ? "OPT"
                           : model_type == "qwen2"   ? "Qwen2"
                           : model_type == "mistral" ? "Mistral"
                                                     : "Llama";
  const std::string lm = family == Family::kGpt2 ? "LMHeadModel" : "ForCausalLM";
  j["architectures"] =
      Json::array({base + (head == Head::kScalar ? "ForSequenceClassification" : lm)});
  j["model_type"] = model_type;
  j["vocab_size"] = vocab_size;
  switch (family) {
    case Family::kLlama:
      j["hidden_size"] = hidden_size;
      j["intermediate_size"] = intermediate_size;
      j["num_hidden_layers"] = num_hidden_layers;
      j["num_attention_heads"] = num_attention_heads;
      j["num_key_value_heads"] = num_key_value_heads;
      j["head_dim"] = head_dim;
      j["max_position_embeddings"] = max_position_embeddings;
      j["rms_norm_eps"] = norm_eps;
      j["rope_theta"] = rope_theta;
      j["hidden_act"] = hidden_act;
      if (model_type == "llama") {
        j["attention_bias"] = attention_bias;
        j["mlp_bias"] = mlp_bias;
      }
      if (model_type == "qwen2") j["use_sliding_window"] = sliding_window > 0;
      if (sliding_window > 0) {
        j["sliding_window"] = sliding_window;
      } else if (model_type == "mistral") {
        j["sliding_window"] = nullptr;
      }
      break;
    case Family::kGpt2:
      j["n_embd"] = hidden_size;
      j["n_inner"] = intermediate_size;
      j["n_layer"] = num_hidden_layers;
      j["n_head"] = num_attention_heads;
      j["n_positions"] = max_position_embeddings;
      j["layer_norm_epsilon"] = norm_eps;
      j["activation_function"] = hidden_act;
      break;
    case Family::kOpt:
      j["hidden_size"] = hidden_size;
      j["ffn_dim"] = intermediate_size;
      j["num_hidden_layers"] = num_hidden_layers;
      j["num_attention_heads"] = num_attention_heads;
      j["max_position_embeddings"] = max_position_embeddings;
      j["word_embed_proj_dim"] = embedding_dim();
      j["do_layer_norm_before"] = norm_first;
      j["activation_function"] = hidden_act;
      break;
  }
  j["tie_word_embeddings"] = tie_word_embeddings;
  if (bos_token_id >= 0) j["bos_token_id"] = bos_token_id;
  if (eos_token_ids.size() == 1) j["eos_token_id"] = eos_token_ids.front();
  if (eos_token_ids.size() > 1) j["eos_token_id"] = eos_token_ids;
  if (pad_token_id >= 0) j["pad_token_id"] = pad_token_id;
  if (head == Head::kScalar) {
    // Hugging Face counts labels by this map.
    j["id2label"] = {{"0", "LABEL_0"}};
    j["label2id"] = {{"LABEL_0", 0}};
  }
  return j;
}

}  // namespace neap::spec
