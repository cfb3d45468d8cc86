// A transformer's shape, from Hugging Face's config.json, and the names and sizes of its
// parameters.
//
// model/ lays its weights out from the same list, so plan and run cannot disagree about a byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap::plan {

enum class Family { kLlama, kGpt2, kOpt };
enum class Head {
  kLanguageModel,
  kScalar
};  ///< kScalar: one number a token (value and reward models)

struct ModelShape {
  Family family = Family::kLlama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t position_offset = 0;  ///< OPT starts its learned positions at 2
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  std::string hidden_act = "silu";  ///< silu, gelu, gelu_new, relu
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< Qwen2-type q, k, v biases in a Llama block
  std::int64_t bos_token_id = -1, eos_token_id = -1, pad_token_id = -1;

  [[nodiscard]] static Result<ModelShape> from_json(const Json& config, std::string_view where);
  [[nodiscard]] static Result<ModelShape> from_folder(const std::filesystem::path& folder);
  [[nodiscard]] Json to_json() const;  ///< Hugging Face's keys
};

/// One named parameter, in the order in which it lies in its flat unit.
struct Parameter {
  std::string name;  ///< Hugging Face's name: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< elements from the start of its unit
  [[nodiscard]] std::int64_t elements() const;
};
/// Parameters that live in one contiguous region: the embedding, each block, the final norm with
/// the head.
struct FlatUnit {
  std::string name;  ///< "embed", "block.0", ..., "head"
  std::vector<Parameter> parameters;
  std::int64_t elements =
      0;  ///< with padding: each parameter starts at a multiple of kParameterAlignment
};
constexpr std::int64_t kParameterAlignment = 64;  ///< elements

/// The flat layout of a model with that head; LoRA adapters (rank > 0) make a second list of
/// trainable units.
[[nodiscard]] std::vector<FlatUnit> flat_layout(const ModelShape& shape, Head head);
struct LoraShape {
  std::int64_t rank = 0;
  std::vector<std::string> targets;
};
[[nodiscard]] std::vector<FlatUnit> lora_layout(const ModelShape& shape, Head head,
                                                const LoraShape& lora);
[[nodiscard]] std::int64_t total_elements(const std::vector<FlatUnit>& units);

}  // namespace neap::plan
