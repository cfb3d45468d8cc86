// Where a model's parameters lie: flat units of named parameters, from the features of its
// architecture.
//
// Plans, weights, gradients, optimizer states and checkpoint files use this one list.
//
// Threads   values and functions without state.
// Cost      proportional to the number of parameters (microseconds a block).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/architecture.h"
#include "spec/lora.h"

namespace neap::spec {

/// Who has a parameter of a model that ranks divide, along the axis "tensor".
struct Spread {
  std::int64_t parts = 1;  ///< different ones, each on as many ranks; 1: every rank has all of it
  /// Ranks that have the same part compute different parts of its gradient, which is their sum.
  bool summed = false;
  int dimension = -1;  ///< along which the parts are cut; -1: they are not
  friend bool operator==(const Spread&, const Spread&) = default;
  /// Which part a rank has.
  [[nodiscard]] std::int64_t part_of(const TensorShard& shard) const {
    return shard.rank * parts / shard.ranks;
  }
  /// The first rank that has its part: sums over the model count it there.
  [[nodiscard]] bool counts_on(const TensorShard& shard) const {
    return shard.rank * parts % shard.ranks == 0;
  }
};

/// One named parameter, in the order in which it lies in its flat unit.
struct Parameter {
  std::string name;  ///< Hugging Face's: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< elements from the start of its unit
  Module module = Module::kTokenEmbedding;
  Part part = Part::kWeight;
  Spread spread;
  [[nodiscard]] std::int64_t elements() const;
};
/// Parameters that live in one contiguous region: the embedding, each block, the final norm with
/// the head.
struct FlatUnit {
  std::string name;         ///< "embed", "block.0", ..., "head"
  std::int64_t block = -1;  ///< its number; -1 for the embedding and the head
  std::vector<Parameter> parameters;
  /// With padding: each parameter starts at a multiple of kParameterAlignment.
  std::int64_t elements = 0;
  /// Null when the unit has no such parameter.
  [[nodiscard]] const Parameter* find(Module module, Part part = Part::kWeight) const;
};
constexpr std::int64_t kParameterAlignment = 64;  ///< elements

/// Units "embed", "block.0" ..., "head". A tied head has no weight of its own: it reads the
/// embedding's; the unit "head" is missing where nothing else is in it. Of a stage of a pipeline its own
/// units, under the names that they have in the whole model.
[[nodiscard]] std::vector<FlatUnit> flat_layout(const Architecture& a, Head head);
/// The last stage of several has a copy of the unit "embed", whose table is its head.
[[nodiscard]] bool copies_table(const Architecture& a, Head head);
/// The places of units by name, of which `whole` has each.
[[nodiscard]] std::vector<std::size_t> numbers_in(const std::vector<FlatUnit>& whole,
                                                  const std::vector<FlatUnit>& part);
/// Those at `numbers`.
[[nodiscard]] std::vector<FlatUnit> units_of(const std::vector<FlatUnit>& whole,
                                             const std::vector<std::size_t>& numbers);
/// "model.layers.3", "transformer.h.3", "model.decoder.layers.3".
[[nodiscard]] std::string block_prefix(const Architecture& a, std::int64_t block);
/// Files of the bare model leave this and a dot out of every name: "model", "transformer".
[[nodiscard]] std::string_view base_model_prefix(const Architecture& a);

/// A linear layer of a block: y = x W^T + b, W (out, in); with Architecture::input_major (in, out).
struct Linear {
  Module module = Module::kQuery;
  std::string name;  ///< within its block: "self_attn.q_proj", "attn.c_attn"
  std::int64_t in = 0, out = 0;
  bool bias = false;
};
/// The linears of a block in the order of the forward pass.
[[nodiscard]] std::vector<Linear> block_linears(const Architecture& a);

/// LoRA adapters (rank > 0): a second list of units, all of it trainable, with PEFT's names
/// ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", A (rank, in), B (out, rank)).
/// A scalar head is trained with them: a unit "head" holds its copy.
/// Every target names at least one linear of a block, and the rank is not over its width.
[[nodiscard]] Status check_lora(const Architecture& a, const LoraShape& lora);
[[nodiscard]] std::vector<FlatUnit> lora_layout(const Architecture& a, Head head,
                                                const LoraShape& lora);
/// A unit of adapters beside units of the model.
[[nodiscard]] inline std::string adapter_part(std::string_view unit) {
  return "adapter." + std::string(unit);
}
/// Where a whole unit of a rank's part is while parts to generate with are taken of it.
inline constexpr std::string_view kWholeUnitPart = "whole";
/// What such a part has of another rank's passes here.
inline constexpr std::string_view kTransferPart = "transfer";
/// PEFT puts it in front of a parameter's name.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";
[[nodiscard]] std::int64_t total_elements(const std::vector<FlatUnit>& units);

}  // namespace neap::spec
