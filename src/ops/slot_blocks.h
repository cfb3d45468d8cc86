// A model's blocks and tables that rest elsewhere, bound to the slots that they come to.
//
// Model     Each slot has memory for the largest block; every block is bound to every slot's at once, and a pass takes the
//           binding of the slot that its block came to. What rests where, and when it comes, is step::BlockSlots'.
// Threads   one at a time: that of the passes.
// Failure   neap::Error where memory is too small for a unit; what the slots throw.
// Cost      views of every block for every slot; no memory of tensors. Rows from files are copied to the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "spec/layout.h"
#include "step/transformer.h"
#include "step/units.h"

namespace neap::ops {

/// Blocks and tables of the base that rest elsewhere and are in slots while they are used.
struct StreamedBase {
  step::BlockSlots* slots = nullptr;  ///< outlives the model
  /// Of each slot: (elements of the largest block,); gradients are empty where the base is frozen.
  std::vector<at::Tensor> memory, gradients;
  /// Of each slot, as many elements as a group's inputs have; empty: they do not rest elsewhere.
  std::vector<at::Tensor> inputs;
  /// Of tables while it is their turn: (elements of the largest,). Undefined: the base's weights are where they come to.
  at::Tensor table_memory, table_gradients;
  bool table_on_host = false;  ///< the embedding is in host memory, or `slots` reads its rows
};

/// The one of `units` that a table's turn takes.
[[nodiscard]] const spec::FlatUnit& table_unit(const step::Weights<at::Tensor>& weights,
                                               const std::vector<spec::FlatUnit>& units,
                                               step::Table table);

/// What passes take blocks from. `weights` is bound but for what is streamed; `streamed.slots` outlives the result.
[[nodiscard]] std::unique_ptr<step::BlockSource<at::Tensor>> make_slot_blocks(
    const step::Weights<at::Tensor>& weights, const StreamedBase& streamed);

}  // namespace neap::ops
