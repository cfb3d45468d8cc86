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
#include "spec/layout.h"

namespace neap::spec {

enum class Family { kLlama, kGpt2, kOpt };

struct ModelShape {
  Family family = Family::kLlama;
  std::string model_type = "llama";  ///< Hugging Face's: llama, qwen2, mistral, gpt2, opt
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
  bool attention_bias = false;         ///< q, k, v biases in a Llama block (Qwen2 too)
  bool attention_output_bias = false;  ///< o_proj's (Llama's attention_bias, not Qwen2's)
  bool mlp_bias = false;               ///< of a Llama block
  bool norm_first = true;  ///< false for OPT-350m: norms behind attention and MLP, no final norm
  std::int64_t word_embed_proj_dim =
      0;                            ///< OPT: width of the embedding where it is not hidden_size
  std::int64_t sliding_window = 0;  ///< attention looks back so far; 0: all the way. Longer
                                    ///< sequences are refused, so attention can ignore it
  std::int64_t bos_token_id = -1, pad_token_id = -1;
  std::vector<std::int64_t> eos_token_ids;  ///< config.json has one or a list

  [[nodiscard]] static Result<ModelShape> from_json(const Json& config, std::string_view where);
  [[nodiscard]] static Result<ModelShape> from_folder(const std::filesystem::path& folder);
  /// Hugging Face's keys, with the architecture that `head` makes of it.
  [[nodiscard]] Json to_json(Head head = Head::kLanguageModel) const;

  /// Width of the embedding and of what the head reads: hidden_size, but for OPT-350m.
  [[nodiscard]] std::int64_t embedding_dim() const {
    return word_embed_proj_dim > 0 ? word_embed_proj_dim : hidden_size;
  }
  [[nodiscard]] bool projects_embedding() const { return embedding_dim() != hidden_size; }
};

/// The flat layout of a model with that head. A tied head has no weight of its own: it reads the
/// embedding's. Units: "embed", "block.0" ..., "head".
[[nodiscard]] std::vector<FlatUnit> flat_layout(const ModelShape& shape, Head head);

/// The linears of a block in the order of the forward pass.
[[nodiscard]] std::vector<Linear> block_linears(const ModelShape& shape);
/// "model.layers.3", "transformer.h.3", "model.decoder.layers.3".
[[nodiscard]] std::string block_prefix(const ModelShape& shape, std::int64_t block);

/// Every target names at least one linear of the model, and the rank is not over its width.
[[nodiscard]] Status check_lora(const ModelShape& shape, const LoraShape& lora);
[[nodiscard]] std::vector<FlatUnit> lora_layout(const ModelShape& shape, Head head,
                                                const LoraShape& lora);

}  // namespace neap::spec
