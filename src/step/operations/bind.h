// Binds the named parameters of flat units to their places in a network.
#pragma once

#include <vector>

#include "spec/model/layout.h"
#include "step/operations/weights.h"

namespace neap::step {

/// Stores the views of one parameter of `unit`; `gradient` may be undefined.
template <class T>
void bind_parameter(Weights<T>& w, const spec::FlatUnit& unit, const spec::Parameter& parameter,
                    const T& weight, const T& gradient) {
  const Slot<T> slot = find_slot(w, unit.block, parameter.module, parameter.part);
  *slot.weight = weight;
  *slot.gradient = gradient;
}

/// Stores views of a block's neighbours as one tensor: view(neighbours).
template <class T, class View>
void bind_neighbours(Weights<T>& w, const spec::FlatUnit& unit, const View& view) {
  if (unit.block < 0 || w.architecture.input_major) return;
  using spec::Module;
  using spec::Part;
  const auto join = [&](Linear<T>& to, const std::vector<Module>& modules) {
    const auto weight = spec::joined_parameters(unit, modules, Part::kWeight);
    if (weight && unit.find(modules.front(), Part::kBias) == nullptr) to.weight = view(*weight);
  };
  Block<T>& block = block_of(w, unit.block);
  const std::vector<Module> heads{Module::kQuery, Module::kKey, Module::kValue};
  join(block.heads, heads);
  join(block.gate_and_up, {Module::kGate, Module::kUp});
  if (block.heads.defined()) return;
  auto stack = spec::stacked_parameters(unit, heads, Part::kWeight);
  if (!stack) stack = spec::stacked_parameters(unit, {Module::kKey, Module::kValue}, Part::kWeight);
  if (stack) block.stacked = view(*stack);
}

/// Completes the binding after the base's parameters: a tied head reads the embedding's weight.
template <class T>
void finish_binding(Weights<T>& w) {
  for (std::size_t i = 0; i < w.blocks.size(); ++i)
    w.blocks[i].index = w.architecture.block_at(static_cast<std::int64_t>(i));
  for_each_block_linear(w, [&](Linear<T>& l) {
    l.input_major = w.architecture.input_major;
    l.in_block = true;
  });
  for (Block<T>& b : w.blocks)
    b.attention_out.adds_bias = b.down.adds_bias = w.architecture.tensor.rank == 0;
  if (!w.architecture.ties_table(w.head)) return;
  w.lm_head.weight = w.token_table;
  w.lm_head.d_weight = w.d_token_table;
}

}  // namespace neap::step
