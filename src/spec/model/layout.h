// The layout of a model's parameters: flat units of named parameters, derived from its
// architecture.
//
// Plans, weights, gradients, optimizer states and checkpoint files share this list.
//
// Threads   values and stateless functions.
// Cost      proportional to the number of parameters (microseconds per block).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model/architecture.h"
#include "spec/types/lora.h"

namespace neap::spec {

/// Which ranks along the axis "tensor" have a parameter.
struct Spread {
  /// Number of different shards, each on the same number of ranks; 1: replicated.
  std::int64_t parts = 1;
  /// Ranks with the same shard compute different terms of its gradient, which must be summed.
  bool summed = false;
  int dimension = -1;  ///< dimension of the cut; -1: replicated
  friend bool operator==(const Spread&, const Spread&) = default;
  /// The number of a rank's shard.
  [[nodiscard]] std::int64_t part_of(const TensorShard& shard) const {
    return shard.rank * parts / shard.ranks;
  }
  /// Whether this is the first rank with its shard. Sums over the model count the shard there.
  [[nodiscard]] bool counts_on(const TensorShard& shard) const {
    return shard.rank * parts % shard.ranks == 0;
  }
};

/// A named parameter. Parameters are listed in the order of their offsets in a flat unit.
struct Parameter {
  std::string name;  ///< Hugging Face's: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< elements from the start of its unit
  Module module = Module::kTokenEmbedding;
  Part part = Part::kWeight;
  Spread spread;
  [[nodiscard]] std::int64_t elements() const;
};
/// Parameters in one contiguous region (an FSDP unit). Units are the embedding, each block, and the
/// final norm with the head.
struct FlatUnit {
  std::string name;         ///< "embed", "block.0", ..., "head"
  std::int64_t block = -1;  ///< number of the block; -1 for the embedding and the head
  std::vector<Parameter> parameters;
  /// Includes padding: each parameter starts at a multiple of kParameterAlignment.
  std::int64_t elements = 0;
  /// Null if the unit has no such parameter.
  [[nodiscard]] const Parameter* find(Module module, Part part = Part::kWeight) const;
};
constexpr std::int64_t kParameterAlignment = 64;  ///< elements

/// Several parameters of a unit as one tensor.
struct Neighbours {
  std::int64_t offset = 0;          ///< elements from the start of the unit
  std::vector<std::int64_t> shape;  ///< with `stride`: (count, ...)
  /// Elements between the starts of equal parameters; 0: nothing lies between them.
  std::int64_t stride = 0;
};
/// Parameters of modules that follow one another without padding, joined along their first dimension.
[[nodiscard]] std::optional<Neighbours> joined_parameters(const FlatUnit& unit,
                                                          const std::vector<Module>& modules,
                                                          Part part);
/// Parameters of one shape, at one distance from each other.
[[nodiscard]] std::optional<Neighbours> stacked_parameters(const FlatUnit& unit,
                                                           const std::vector<Module>& modules,
                                                           Part part);

/// Units "embed", "block.0", ..., "head". A tied head reads the embedding's weight, and the unit
/// "head" is missing if nothing else is in it. A pipeline stage has its own units, under their
/// names in the whole model.
[[nodiscard]] std::vector<FlatUnit> flat_layout(const Architecture& a, Head head);
/// Whether the last of several stages has a copy of the unit "embed", because the head is tied.
[[nodiscard]] bool copies_table(const Architecture& a, Head head);
/// The positions in `whole` of the units of `part`, by name.
[[nodiscard]] std::vector<std::size_t> numbers_in(const std::vector<FlatUnit>& whole,
                                                  const std::vector<FlatUnit>& part);
/// The units at positions `numbers`.
[[nodiscard]] std::vector<FlatUnit> units_of(const std::vector<FlatUnit>& whole,
                                             const std::vector<std::size_t>& numbers);
/// "model.layers.3", "transformer.h.3", "model.decoder.layers.3".
[[nodiscard]] std::string block_prefix(const Architecture& a, std::int64_t block);

/// A linear layer of a block: y = x W^T + b. W is (out, in), or (in, out) with
/// Architecture::input_major.
struct Linear {
  Module module = Module::kQuery;
  std::string name;  ///< within its block: "self_attn.q_proj", "attn.c_attn"
  std::int64_t in = 0, out = 0;
  bool bias = false;
};
/// The linear layers of a block, in forward order.
[[nodiscard]] std::vector<Linear> block_linears(const Architecture& a);

/// Units of LoRA adapters (rank > 0), all of them trained. Names are PEFT's
/// ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"); A is (rank, in) and B is
/// (out, rank). A scalar head is trained too: the unit "head" holds its copy. check_lora() fails if
/// a target names no linear layer, or if the rank exceeds a layer's width.
[[nodiscard]] Status check_lora(const Architecture& a, const LoraShape& lora);
[[nodiscard]] std::vector<FlatUnit> lora_layout(const Architecture& a, Head head,
                                                const LoraShape& lora);
/// The unit of a model unit's adapter.
[[nodiscard]] inline std::string adapter_part(std::string_view unit) {
  return "adapter." + std::string(unit);
}
/// Holds a whole unit of a rank while the rollout's shards are taken from it.
inline constexpr std::string_view kWholeUnitPart = "whole";
/// Receives the parts of a rollout shard that come from other ranks.
inline constexpr std::string_view kTransferPart = "transfer";
/// PEFT's prefix of parameter names.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";
[[nodiscard]] std::int64_t total_elements(const std::vector<FlatUnit>& units);

}  // namespace neap::spec
