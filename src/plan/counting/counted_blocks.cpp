#include "plan/counting/counted_blocks.h"

namespace neap::plan {

using step::CountedTensor;

CountedBlocks::CountedBlocks(step::CountingOps& ops, const step::Weights<T>& weights,
                             CountedSlots* slots, CountedSlots* input_slots)
    : SlotSource(slots, input_slots,
                 input_slots != nullptr || slots->layers().streams_inputs()
                     ? weights.architecture.hidden_size *
                           element_bytes(ops.dtype(step::any_weight(weights)))
                     : 0),
      ops_(ops),
      weights_(weights),
      counted_(slots),
      dtype_(ops.dtype(step::any_weight(weights))) {}

CountedTensor CountedBlocks::rows_from_files(const T& table, const T& indices) {
  if (counted_ == nullptr || !counted_->layers().tables_in_files) return {};
  const double read = static_cast<double>(indices.size(0)) * static_cast<double>(table.size(1)) *
                      static_cast<double>(element_bytes(dtype_));
  ops_.wait_until(ops_.begin_disk(step::Direction::kToDevice, read, ops_.now()));
  return {};  // from there on it is handled like a table in host memory
}

}  // namespace neap::plan
