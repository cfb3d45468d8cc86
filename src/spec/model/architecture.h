// A decoder-only transformer as a set of features, read from Hugging Face's config.json.
//
// Passes, plans and checkpoint files read features and never model_type. A new model_type needs one
// file in spec/architectures, which sets these fields and names the parameters.
//
// Threads   values; may be shared when const.
// Failure   Status with the file, the key and the value; kUnsupported for features that no pass
//           computes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "spec/types/mesh.h"
#include "spec/types/modules.h"

namespace neap::spec {

enum class Head {
  kLanguageModel,
  kScalar,  ///< one number per token: value and reward models
};

enum class NormKind {
  kLayerNorm,
  kRms,        ///< weight * round(x / rms(x))
  kRmsOffset,  ///< round((1 + weight) * x / rms(x)), as Gemma
};
enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };
enum class QkvLayout {
  kSeparate,  ///< three matrices
  kInTurn,    ///< one matrix: all queries, then all keys, then all values (GPT-2, Phi-3)
  kPerHead,   ///< one matrix: for each head its query, key and value (GPT-NeoX)
};

/// Where the norms of attention and of the MLP are. With residual stream x and sublayer f, the
/// result is x + after(f(before(x))), or over(x + f(x)).
struct NormPlacement {
  bool before = true;
  bool after = false;
  bool over = false;
};

/// Rotary embedding: which dimensions are rotated, and by which angles.
struct Rotary {
  enum class Scaling { kNone, kLinear, kDynamic, kYarn, kLlama3, kLongrope };
  /// Rotated dimensions at the start of each head; 0: learned positions.
  std::int64_t dimensions = 0;
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;                        ///< yarn
  double mscale = 0, mscale_all_dim = 0;                       ///< yarn; 0: not given
  double attention_factor = 0;              ///< yarn, longrope; 0: derived from factor
  bool truncate = true;                     ///< yarn
  std::int64_t original_max_positions = 0;  ///< dynamic, yarn, llama3, longrope
  /// longrope: dimensions / 2 values; long: for longer sequences
  std::vector<float> short_factors, long_factors;
};
/// The angle per position of each pair of dimensions, and the factor of cos and sin.
struct RotaryTable {
  std::vector<float> frequencies;  ///< dimensions / 2
  double attention_factor = 1;
};
/// `length` is the longest possible sequence. Dynamic scaling and longrope depend on it.
[[nodiscard]] RotaryTable rotary_table(const Rotary& rotary, std::int64_t length);
/// The smallest length that has the same table.
[[nodiscard]] std::int64_t least_alike(const Rotary& rotary, std::int64_t length);

/// ALiBi (Press, Smith and Lewis 2022): by how much each head's scores fall per position of
/// distance. If `heads` is a power of two, slopes are powers of 2^(-8 / heads).
[[nodiscard]] std::vector<float> alibi_slopes(std::int64_t heads);
/// Slopes of heads [first, first + heads) of `all`, for a tensor-parallel shard.
[[nodiscard]] std::vector<float> alibi_slopes(std::int64_t all, std::int64_t first,
                                              std::int64_t heads);

/// Which tensor-parallel shard of a model this is (spec/model/tensor_parallel.h).
struct TensorShard {
  std::int64_t ranks = 1, rank = 0;
  bool divides_rows =
      false;  ///< sequence parallelism in training and scoring (step/operations/rows.h)
  /// Rows of hidden states of one rank, of `all`.
  [[nodiscard]] std::int64_t rows_of(std::int64_t all) const {
    return divides_rows ? rows_of_each(all, ranks) : all;
  }
  friend bool operator==(const TensorShard&, const TensorShard&) = default;
};

struct BlockRange {
  std::int64_t first = 0, count = 0;
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};
/// Which pipeline stage of a model this is (spec/model/pipeline.h).
struct PipelineStage {
  std::int64_t stages = 1, stage = 0;
  std::int64_t chunks = 1;  ///< chunks per stage (virtual pipeline)
  bool zero_bubble =
      false;  ///< schedule whose backward has two parts (step/pipeline/pipeline_schedule.h)
  /// Blocks of this stage's chunks, numbered in the whole model; empty without stages.
  std::vector<BlockRange> ranges{};
  std::vector<std::int64_t> layout{};  ///< blocks of each part; empty: divide_blocks() decides
  friend bool operator==(const PipelineStage&, const PipelineStage&) = default;
};
/// Blocks that a pass computes without leaving the stage.
struct BlockChunk {
  BlockRange blocks{};   ///< numbered within this stage
  bool embeds = true;    ///< starts with the embedding
  bool has_head = true;  ///< ends with the final norm and the head
};

struct Architecture {
  std::string model_type = "llama";  ///< Hugging Face's
  PipelineStage pipeline;            ///< layers are counted over all stages
  /// Numbers of heads, intermediate size and vocabulary size are those of this shard.
  TensorShard tensor;
  /// Number of different shards of the key heads; further ranks hold copies.
  std::int64_t key_parts = 1;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;

  // Embedding.
  std::int64_t embedding_dim = 0;  ///< hidden_size, except for OPT-350m, which projects in and out
  double embedding_scale = 1;  ///< full precision; rounded() to the activations' type before use
  /// Position table of max_position_embeddings + position_offset rows.
  bool learned_positions = false;
  std::int64_t position_offset = 0;  ///< OPT starts at 2
  bool embedding_norm = false;       ///< norm after the embedding (BLOOM)

  // Blocks.
  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-5;
  NormPlacement placement;
  bool parallel_residual = false;  ///< attention and MLP read the same x
  /// Factor of what a sublayer adds to the residual stream; norms come before.
  double residual_scale = 1;
  Rotary rotary;
  Rotary sliding_rotary;  ///< for sliding layers; no dimensions: same as the other layers
  QkvLayout qkv = QkvLayout::kSeparate;
  /// One per layer: queries and keys are not rotated; empty: all are rotated.
  std::vector<bool> unrotated_layers;
  bool query_key_norm = false;     ///< over each head's dimensions, before the rotation
  bool norm_across_heads = false;  ///< that norm spans all heads
  double attention_scale = 0;      ///< factor of the scores; 0: head_dim^-1/2
  double attention_softcap = 0;    ///< cap * tanh(score / cap); 0: none
  bool alibi = false;              ///< scores fall with distance, by head (alibi_slopes)
  bool gated = true;               ///< down(act(gate x) * up x); else down(act(up x))
  bool fused_gate = false;         ///< gate and up are one matrix, with the gate's rows first
  Activation activation = Activation::kSilu;
  bool attention_bias = false;  ///< of q, k, v
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool input_major = false;  ///< block matrices are stored (in, out) (GPT-2)
  /// Number of keys that a query of a sliding layer attends to; 0: no layer slides.
  std::int64_t sliding_window = 0;
  std::vector<bool> sliding_layers;  ///< one per layer; empty: no layer slides

  // Head.
  bool final_norm = true;
  bool tie_word_embeddings = false;
  double logit_softcap = 0;   ///< 0: none
  double logits_divisor = 1;  ///< logits are divided by it

  std::int64_t bos_token_id = -1, pad_token_id = -1;
  std::vector<std::int64_t> eos_token_ids;

  /// The file as read. An export also keeps the keys that no pass uses.
  Json config;

  [[nodiscard]] static Result<Architecture> from_json(const Json& config, std::string_view where);
  [[nodiscard]] static Result<Architecture> from_folder(const std::filesystem::path& folder);
  /// Hugging Face's keys; `head` selects the class.
  [[nodiscard]] Json to_json(Head head = Head::kLanguageModel) const;

  /// Whether the head shares the embedding's weight (tied embedding).
  [[nodiscard]] bool ties_table(Head head) const {
    return head == Head::kLanguageModel && tie_word_embeddings;
  }
  [[nodiscard]] bool projects_embedding() const { return embedding_dim != hidden_size; }
  [[nodiscard]] std::int64_t query_width() const { return num_attention_heads * head_dim; }
  [[nodiscard]] std::int64_t key_value_width() const { return num_key_value_heads * head_dim; }
  /// The attention window of a layer; 0: all earlier keys.
  [[nodiscard]] std::int64_t window_of(std::int64_t layer) const;
  /// Whether a layer's queries and keys are rotated.
  [[nodiscard]] bool rotates(std::int64_t layer) const;
  /// Whether all layers compute the same: all or none slide, and all or none rotate.
  [[nodiscard]] bool layers_alike() const;
  /// The longest sequence that the positions support.
  [[nodiscard]] std::int64_t longest_sequence() const;

  // Blocks of this stage; without stages, all blocks.
  [[nodiscard]] std::int64_t blocks() const;
  /// Converts between a block's number in this stage and its number in the whole model.
  [[nodiscard]] std::int64_t block_at(std::int64_t i) const;
  [[nodiscard]] std::int64_t place_of_block(std::int64_t block) const;
  [[nodiscard]] std::int64_t chunks() const { return pipeline.stages == 1 ? 1 : pipeline.chunks; }
  [[nodiscard]] BlockChunk chunk(std::int64_t number) const;
  [[nodiscard]] bool embeds() const { return pipeline.stage == 0; }
  [[nodiscard]] bool has_head() const { return pipeline.stage + 1 == pipeline.stages; }
};

}  // namespace neap::spec
