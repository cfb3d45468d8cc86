// A decoder-only transformer as a set of features, read from Hugging Face's config.json.
//
// Passes, plans and checkpoint files look at features and never at model_type. A new model_type is
// one file in spec/architectures that fills these fields and names the parameters.
//
// Threads   values; freely shared when const.
// Failure   Status with the file, the key and the value; kUnsupported for what no pass computes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "spec/mesh.h"

namespace neap::spec {

enum class Head {
  kLanguageModel,
  kScalar,  ///< one number a token: value and reward models
};

enum class NormKind {
  kLayerNorm,
  kRms,        ///< weight * round(x / rms(x))
  kRmsOffset,  ///< round((1 + weight) * x / rms(x)), as Gemma
};
enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };
enum class QkvLayout {
  kSeparate,  ///< three matrices
  kInTurn,    ///< one: all queries, then all keys, then all values (GPT-2, Phi-3)
  kPerHead,   ///< one: for each head its query, key and value (GPT-NeoX)
};

/// Where the norms of attention and of the MLP stand. A part f of a block adds f to the residual
/// stream x: x + after(f(before(x))), or over(x + f(x)).
struct NormPlacement {
  bool before = true;
  bool after = false;
  bool over = false;
};

/// Rotary embedding: which dimensions turn, and how fast.
struct Rotary {
  enum class Scaling { kNone, kLinear, kDynamic, kYarn, kLlama3, kLongrope };
  std::int64_t dimensions = 0;  ///< the first so many of each head; 0: learned positions
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;                        ///< yarn
  double mscale = 0, mscale_all_dim = 0;                       ///< yarn; 0: not given
  double attention_factor = 0;                                 ///< yarn, longrope; 0: from factor
  bool truncate = true;                                        ///< yarn
  std::int64_t original_max_positions = 0;                     ///< dynamic, yarn, llama3, longrope
  std::vector<float> short_factors, long_factors;  ///< longrope: dimensions / 2; long: beyond those
};
/// Angle a position of each pair of dimensions, and what cos and sin are multiplied by.
struct RotaryTable {
  std::vector<float> frequencies;  ///< dimensions / 2
  double attention_factor = 1;
};
/// `length`: tokens that a sequence may have; dynamic scaling and longrope depend on it.
[[nodiscard]] RotaryTable rotary_table(const Rotary& rotary, std::int64_t length);
/// The least length with the same table.
[[nodiscard]] std::int64_t least_alike(const Rotary& rotary, std::int64_t length);

/// Press, Smith and Lewis 2022 (ALiBi): what a step away costs the scores of each head; powers of two
/// from 2^(-8 / heads), where heads is a power of two.
[[nodiscard]] std::vector<float> alibi_slopes(std::int64_t heads);
/// Of a model whose heads several ranks divide: those of `heads` heads from `first` on, of `all`.
[[nodiscard]] std::vector<float> alibi_slopes(std::int64_t all, std::int64_t first,
                                              std::int64_t heads);

/// Which part of a model this is, of as many as ranks divide it into (spec/tensor_parallel.h).
struct TensorShard {
  std::int64_t ranks = 1, rank = 0;
  bool divides_rows = false;  ///< of hidden states in training and scoring, too (step/rows.h)
  /// Rows of hidden states that a rank has of `all`.
  [[nodiscard]] std::int64_t rows_of(std::int64_t all) const {
    return divides_rows ? rows_of_each(all, ranks) : all;
  }
  friend bool operator==(const TensorShard&, const TensorShard&) = default;
};

struct BlockRange {
  std::int64_t first = 0, count = 0;
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};
/// Which blocks of a model this is, where the stages of a pipeline divide them (spec/pipeline.h).
struct PipelineStage {
  std::int64_t stages = 1, stage = 0;
  std::int64_t chunks = 1;   ///< of each of several stages
  bool zero_bubble = false;  ///< the schedule: a backward in two parts (step/pipeline_schedule.h)
  std::vector<BlockRange>
      ranges{};  ///< of several stages: blocks of this one's chunks, in the whole model
  std::vector<std::int64_t> layout{};  ///< blocks of each part; empty: as divide_blocks() chooses
  friend bool operator==(const PipelineStage&, const PipelineStage&) = default;
};
/// What a pass goes through without leaving a stage.
struct BlockChunk {
  BlockRange blocks{};   ///< counted on this stage
  bool embeds = true;    ///< begins with the embedding
  bool has_head = true;  ///< the final norm and the head follow
};

struct Architecture {
  std::string model_type = "llama";  ///< Hugging Face's
  PipelineStage pipeline;            ///< layers are counted over all stages
  /// Heads, the intermediate size and the vocabulary are those of this part.
  TensorShard tensor;
  std::int64_t key_parts = 1;  ///< different ones of the key heads; ranks beyond them have copies
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;

  // Embedding.
  std::int64_t embedding_dim = 0;    ///< hidden_size, but for OPT-350m, which projects in and out
  double embedding_scale = 1;        ///< exact; rounded() to the type of the activations before use
  bool learned_positions = false;    ///< a table of max_position_embeddings + position_offset rows
  std::int64_t position_offset = 0;  ///< OPT starts at 2
  bool embedding_norm = false;       ///< behind the embedding (BLOOM)

  // Blocks.
  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-5;
  NormPlacement placement;
  bool parallel_residual = false;  ///< attention and MLP read the same x
  double residual_scale = 1;  ///< of what a part adds to the residual stream; placement is before
  Rotary rotary;
  Rotary sliding_rotary;  ///< of layers that slide; no dimensions: as the others
  QkvLayout qkv = QkvLayout::kSeparate;
  std::vector<bool>
      unrotated_layers;            ///< one a layer: queries and keys stay as projected; empty: none
  bool query_key_norm = false;     ///< over each head's dimensions, before the rotation
  bool norm_across_heads = false;  ///< that norm is over all heads' dimensions at once
  double attention_scale = 0;      ///< of the scores; 0: head_dim^-1/2
  double attention_softcap = 0;    ///< cap * tanh(score / cap); 0: none
  bool alibi = false;       ///< scores fall with the distance of the key, by head (alibi_slopes)
  bool gated = true;        ///< down(act(gate x) * up x); else down(act(up x))
  bool fused_gate = false;  ///< gated, and gate and up are one matrix: the gate's rows first
  Activation activation = Activation::kSilu;
  bool attention_bias = false;  ///< of q, k, v
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool input_major = false;  ///< block matrices are stored (in, out) (GPT-2)
  std::int64_t sliding_window =
      0;  ///< keys that a query of a sliding layer attends to; 0: none slides
  std::vector<bool> sliding_layers;  ///< one a layer; empty where none slides

  // Head.
  bool final_norm = true;
  bool tie_word_embeddings = false;
  double logit_softcap = 0;   ///< 0: none
  double logits_divisor = 1;  ///< logits are divided by it

  std::int64_t bos_token_id = -1, pad_token_id = -1;
  std::vector<std::int64_t> eos_token_ids;

  /// The file as read, so that an export keeps the keys that no pass uses.
  Json config;

  [[nodiscard]] static Result<Architecture> from_json(const Json& config, std::string_view where);
  [[nodiscard]] static Result<Architecture> from_folder(const std::filesystem::path& folder);
  /// Hugging Face's keys, with the class that `head` makes of it.
  [[nodiscard]] Json to_json(Head head = Head::kLanguageModel) const;

  /// The embedding's table is the head's, too.
  [[nodiscard]] bool ties_table(Head head) const {
    return head == Head::kLanguageModel && tie_word_embeddings;
  }
  [[nodiscard]] bool projects_embedding() const { return embedding_dim != hidden_size; }
  [[nodiscard]] std::int64_t query_width() const { return num_attention_heads * head_dim; }
  [[nodiscard]] std::int64_t key_value_width() const { return num_key_value_heads * head_dim; }
  /// The window of a layer's attention; 0: every earlier key.
  [[nodiscard]] std::int64_t window_of(std::int64_t layer) const;
  /// Whether a layer's queries and keys are rotated.
  [[nodiscard]] bool rotates(std::int64_t layer) const;
  /// Every layer computes the same: all of them slide or none, and all rotate or none.
  [[nodiscard]] bool layers_alike() const;
  /// Tokens of the longest sequence that the positions are made for.
  [[nodiscard]] std::int64_t longest_sequence() const;

  // Of this stage; of an undivided model all.
  [[nodiscard]] std::int64_t blocks() const;
  /// The number in the whole model of the block that is number `i` here, and back.
  [[nodiscard]] std::int64_t block_at(std::int64_t i) const;
  [[nodiscard]] std::int64_t place_of_block(std::int64_t block) const;
  [[nodiscard]] std::int64_t chunks() const { return pipeline.stages == 1 ? 1 : pipeline.chunks; }
  [[nodiscard]] BlockChunk chunk(std::int64_t number) const;
  [[nodiscard]] bool embeds() const { return pipeline.stage == 0; }
  [[nodiscard]] bool has_head() const { return pipeline.stage + 1 == pipeline.stages; }
};

/// What a parameter belongs to.
enum class Module : std::uint8_t {
  kTokenEmbedding,
  kPositionEmbedding,
  kProjectIn,
  kEmbeddingNorm,
  kAttentionNorm,  ///< before attention
  kQuery,
  kKey,
  kValue,
  kQueryKeyValue,
  kQueryNorm,
  kKeyNorm,
  kAttentionOut,
  kAttentionAfterNorm,  ///< after attention, or over the sum
  kMlpNorm,
  kGate,
  kUp,
  kGateUp,
  kDown,
  kMlpAfterNorm,
  kFinalNorm,
  kProjectOut,
  kLmHead,
  kScore,
};
constexpr std::size_t kModules = 23;
enum class Part : std::uint8_t { kWeight, kBias, kLoraA, kLoraB };
/// Matrices, as against norms and tables of embeddings.
[[nodiscard]] constexpr bool is_linear(Module m) {
  switch (m) {
    case Module::kProjectIn:
    case Module::kQuery:
    case Module::kKey:
    case Module::kValue:
    case Module::kQueryKeyValue:
    case Module::kAttentionOut:
    case Module::kGate:
    case Module::kUp:
    case Module::kGateUp:
    case Module::kDown:
    case Module::kProjectOut:
    case Module::kLmHead:
    case Module::kScore:
      return true;
    default:
      return false;
  }
}

}  // namespace neap::spec
