// A model's parameters and gradients by their place in the network, for any kind of tensor.
//
// Tensors are views of flat units (spec/model/layout.h) that the model does not own. An undefined
// gradient means that the parameter is frozen. An undefined bias or norm means that the
// architecture has none.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "spec/model/architecture.h"

namespace neap::step {

/// y = x W^T + b, plus an adapter's scale (x A^T) B^T.
template <class T>
struct Linear {
  T weight, d_weight;     // (out, in), or (in, out) when input_major
  T bias, d_bias;         // (out,)
  bool adds_bias = true;  ///< false: another rank adds it before the ranks' results are summed
  T lora_a, d_lora_a;     // (rank, in)
  T lora_b, d_lora_b;     // (out, rank)
  double lora_scale = 0;
  bool input_major = false;
  bool in_block = false;  ///< a block's, whose products may be in fp8

  [[nodiscard]] bool defined() const { return weight.defined(); }
  [[nodiscard]] bool has_lora() const { return lora_a.defined(); }
  [[nodiscard]] bool trains() const {
    return d_weight.defined() || d_bias.defined() || d_lora_a.defined() || d_lora_b.defined();
  }
};

template <class T>
struct Norm {
  T weight, d_weight;  // (C,)
  T bias, d_bias;      // (C,)
};

template <class T>
struct Block {
  std::int64_t index = 0;  ///< from 0
  Norm<T> attention_norm, attention_after_norm, mlp_norm, mlp_after_norm;
  Norm<T> query_norm, key_norm;
  Linear<T> query_key_value;  ///< if the three are one matrix
  Linear<T> query, key, value;
  Linear<T> attention_out;
  Linear<T> gate;  ///< undefined: up alone is activated
  Linear<T> up, down;
  Linear<T> gate_up;  ///< if the two are one matrix
  // Views of query, key and value, and of gate and up, as one matrix each. Undefined if they are
  // not adjacent.
  Linear<T> heads, gate_and_up;
  T stacked;  // (n, out, in), without `heads`: a view of query, key and value, or of key and value, if their sizes are equal
};

template <class T>
class BlockSource;
template <class T>
class GradientSink;

template <class T>
struct Weights {
  spec::Architecture architecture;
  spec::Head head = spec::Head::kLanguageModel;
  T token_table, d_token_table;  // (V, E)
  bool table_on_host = false;    ///< token_table is in host memory or files: its rows are copied
  T position_table, d_position_table;  // (positions, C); undefined without learned positions
  Linear<T> project_in, project_out;   ///< if the embedding is narrower
  Norm<T> embedding_norm;              ///< undefined: none
  std::vector<Block<T>> blocks;        ///< of this stage
  /// Source of blocks that are not all on the device (units.h), else null.
  BlockSource<T>* source = nullptr;
  /// Receiver of gradients that are kept elsewhere (units.h), else null.
  GradientSink<T>* sink = nullptr;
  Norm<T> final_norm;
  Linear<T> lm_head;  ///< tied: a view of token_table
  Linear<T> score;
};

/// A parameter and its gradient.
template <class T>
struct Slot {
  T* weight = nullptr;
  T* gradient = nullptr;
};

/// By its number in the whole model.
template <class T>
[[nodiscard]] Block<T>& block_of(Weights<T>& w, std::int64_t number) {
  return w.blocks.at(static_cast<std::size_t>(w.architecture.place_of_block(number)));
}

template <class T>
[[nodiscard]] Linear<T>* find_linear(Weights<T>& w, std::int64_t block, spec::Module module) {
  using spec::Module;
  switch (module) {
    case Module::kProjectIn:
      return &w.project_in;
    case Module::kProjectOut:
      return &w.project_out;
    case Module::kLmHead:
      return &w.lm_head;
    case Module::kScore:
      return &w.score;
    default:
      break;
  }
  Block<T>& b = block_of(w, block);
  switch (module) {
    case Module::kQueryKeyValue:
      return &b.query_key_value;
    case Module::kQuery:
      return &b.query;
    case Module::kKey:
      return &b.key;
    case Module::kValue:
      return &b.value;
    case Module::kAttentionOut:
      return &b.attention_out;
    case Module::kGate:
      return &b.gate;
    case Module::kUp:
      return &b.up;
    case Module::kGateUp:
      return &b.gate_up;
    case Module::kDown:
      return &b.down;
    default:
      return nullptr;
  }
}

template <class T>
[[nodiscard]] Norm<T>* find_norm(Weights<T>& w, std::int64_t block, spec::Module module) {
  using spec::Module;
  if (module == Module::kFinalNorm) return &w.final_norm;
  if (module == Module::kEmbeddingNorm) return &w.embedding_norm;
  Block<T>& b = block_of(w, block);
  switch (module) {
    case Module::kAttentionNorm:
      return &b.attention_norm;
    case Module::kAttentionAfterNorm:
      return &b.attention_after_norm;
    case Module::kMlpNorm:
      return &b.mlp_norm;
    case Module::kMlpAfterNorm:
      return &b.mlp_after_norm;
    case Module::kQueryNorm:
      return &b.query_norm;
    case Module::kKeyNorm:
      return &b.key_norm;
    default:
      return nullptr;
  }
}

/// The slot of one parameter. `block` counts from 0 and is ignored outside the blocks.
template <class T>
[[nodiscard]] Slot<T> find_slot(Weights<T>& w, std::int64_t block, spec::Module module,
                                spec::Part part) {
  using spec::Module;
  using spec::Part;
  if (module == Module::kTokenEmbedding) return {&w.token_table, &w.d_token_table};
  if (module == Module::kPositionEmbedding) return {&w.position_table, &w.d_position_table};
  if (spec::traits_of(module).kind == spec::ModuleKind::kNorm) {
    Norm<T>& n = *find_norm(w, block, module);
    return part == Part::kBias ? Slot<T>{&n.bias, &n.d_bias} : Slot<T>{&n.weight, &n.d_weight};
  }
  Linear<T>& l = *find_linear(w, block, module);
  switch (part) {
    case Part::kWeight:
      return {&l.weight, &l.d_weight};
    case Part::kBias:
      return {&l.bias, &l.d_bias};
    case Part::kLoraA:
      return {&l.lora_a, &l.d_lora_a};
    case Part::kLoraB:
      return {&l.lora_b, &l.d_lora_b};
  }
  return {};
}

/// The matrices of a block.
template <class SomeBlock>
[[nodiscard]] auto linears_of(SomeBlock& b) {
  return std::array{
      &b.query_key_value, &b.query, &b.key, &b.value, &b.attention_out, &b.gate, &b.up,
      &b.gate_up,         &b.down};
}
/// Any one of the weights, which all have the same type. A stage between the first and the last has
/// no table.
template <class T>
[[nodiscard]] const T& any_weight(const Weights<T>& w) {
  if (w.token_table.defined()) return w.token_table;
  for (const Linear<T>* l : linears_of(w.blocks.front()))
    if (l->defined()) return l->weight;
  return w.token_table;
}
/// Calls `visit(Linear&)` for every matrix of the blocks.
template <class T, class Visit>
void for_each_block_linear(Weights<T>& w, const Visit& visit) {
  for (Block<T>& b : w.blocks) {
    for (Linear<T>* l : linears_of(b)) {
      if (l->defined()) visit(*l);
    }
  }
}

}  // namespace neap::step
