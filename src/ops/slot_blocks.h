// Binds offloaded or sharded blocks and tables to the prefetch buffers ("slots") that they are
// loaded into.
//
// Model     Each slot has memory for the largest block. Every block is bound to every slot in
//           advance, and a pass uses the binding of the slot that its block is in. step::BlockSlots
//           decides what is loaded when.
// Threads   one at a time: that of the passes.
// Failure   neap::Error if memory is too small for a unit; what the slots throw.
// Cost      views of every block for every slot; no tensor memory. Embedding rows from files are
//           copied to the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "spec/model/layout.h"
#include "step/model/transformer.h"
#include "step/units/units.h"

namespace neap::ops {

/// Offloaded or sharded blocks and tables of the base, which are in slots while they are used, or
/// inputs of blocks.
struct StreamedBase {
  step::BlockSlots* slots = nullptr;  ///< must outlive the model; null: only inputs are offloaded
  step::BlockSlots* input_slots = nullptr;  ///< of inputs, if these are not in `slots`
  /// Per slot: (elements of the largest block,). Gradients are empty if the base is frozen.
  std::vector<at::Tensor> memory, gradients;
  /// Per slot: the inputs of a group of micro-batches; empty: inputs are not offloaded.
  std::vector<at::Tensor> inputs;
  /// The buffer of a table while it is in use: (elements of the largest table,). Undefined: the
  /// table stays in the base's weights.
  at::Tensor table_memory, table_gradients;
  [[nodiscard]] at::Device device() const {
    return (memory.empty() ? inputs : memory).at(0).device();
  }
  bool table_on_host = false;  ///< the embedding is in host memory, or `slots` reads its rows
};

/// The unit of `units` that a table's turn loads.
[[nodiscard]] const spec::FlatUnit& table_unit(const step::Weights<at::Tensor>& weights,
                                               const std::vector<spec::FlatUnit>& units,
                                               step::Table table);

/// The source of blocks for passes. `weights` is bound except for what is offloaded or sharded.
/// The slots of `streamed` must outlive the result.
[[nodiscard]] std::unique_ptr<step::BlockSource<at::Tensor>> make_slot_blocks(
    const step::Weights<at::Tensor>& weights, const StreamedBase& streamed);

}  // namespace neap::ops
