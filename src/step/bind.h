// Binds the named parameters of flat units to their places in a network.
#pragma once

#include "spec/layout.h"
#include "step/weights.h"

namespace neap::step {

/// Stores the views of one parameter of `unit`; `gradient` may be undefined.
template <class T>
void bind_parameter(Weights<T>& w, const spec::FlatUnit& unit, const spec::Parameter& parameter,
                    const T& weight, const T& gradient) {
  const Slot<T> slot = find_slot(w, unit.block, parameter.module, parameter.part);
  *slot.weight = weight;
  *slot.gradient = gradient;
}

/// Completes the binding after the base's parameters: a tied head reads the embedding's weight.
template <class T>
void finish_binding(Weights<T>& w) {
  for (std::size_t i = 0; i < w.blocks.size(); ++i)
    w.blocks[i].index = w.architecture.block_at(static_cast<std::int64_t>(i));
  for_each_block_linear(w, [&](Linear<T>& l) { l.input_major = w.architecture.input_major; });
  for (Block<T>& b : w.blocks)
    b.attention_out.adds_bias = b.down.adds_bias = w.architecture.tensor.rank == 0;
  if (!w.architecture.ties_table(w.head)) return;
  w.lm_head.weight = w.token_table;
  w.lm_head.d_weight = w.d_token_table;
}

}  // namespace neap::step
