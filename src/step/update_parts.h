// How an update goes through trained units whose optimizer states rest on the host: in parts that come
// to slots of device memory, are stepped there and go back.
//
// A part is a span of a unit where the optimizer's elements do not depend on each other, else a whole
// unit. Of a unit whose weights and gradients rest on the host as well, these come with the states.
//
// Threads   values and functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "spec/layout.h"
#include "spec/optimizer.h"
#include "step/trained_unit.h"

namespace neap::step {

struct UpdatePart {
  std::size_t unit = 0;
  std::int64_t first = 0, count = 0;  ///< of its elements
};

/// A tensor of a part: where it rests, and where it is in a slot.
struct PartTensor {
  enum class Kind : std::uint8_t { kWeights, kGradients, kState };
  Kind kind = Kind::kState;
  std::size_t state = 0;  ///< of kState: its place in TrainedUnit::state
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  Bytes storage_offset;  ///< from the start of the unit's weights, gradients or states
  Bytes slot_offset;
  bool fetched = true, stored = true;
  [[nodiscard]] Bytes bytes() const { return spec::tensor_bytes(elements, dtype); }
};
struct PartLayout {
  std::vector<PartTensor> tensors;
  Bytes bytes;  ///< of a slot
  [[nodiscard]] Bytes fetched() const;
  [[nodiscard]] Bytes stored() const;
};

/// One part comes and one goes while a third is stepped.
constexpr std::size_t kUpdateSlots = 3;

class UpdateParts {
 public:
  /// `on_host`: of each unit, whether its weights and gradients rest there.
  UpdateParts(const spec::OptimizerSpec& optimizer, std::vector<spec::FlatUnit> units,
              std::vector<bool> on_host);

  /// In the order in which they are stepped: unit by unit.
  [[nodiscard]] const std::vector<UpdatePart>& list() const { return parts_; }
  [[nodiscard]] PartLayout layout(const UpdatePart& part) const;
  [[nodiscard]] bool on_host(std::size_t unit) const { return on_host_[unit]; }
  /// Of the largest part.
  [[nodiscard]] Bytes slot_bytes() const;

 private:
  spec::OptimizerSpec optimizer_;
  std::vector<spec::FlatUnit> units_;
  std::vector<spec::UnitState> states_;
  std::vector<bool> on_host_;
  std::vector<UpdatePart> parts_;
};

/// The part of `unit` that lies in a slot: in_slot(PartTensor) makes its tensors; what does not come to
/// the slot is where it was.
template <class Ops, class InSlot, class T = typename Ops::Tensor>
TrainedUnit<T> part_of(Ops& ops, const TrainedUnit<T>& unit, const UpdatePart& part,
                       const PartLayout& layout, const InSlot& in_slot) {
  TrainedUnit<T> out;
  out.unit = unit.unit;
  out.index = unit.index;
  out.first = part.first;
  out.layout = unit.layout;
  out.state.resize(unit.state.size());
  if (!unit.on_host) {
    out.weights = ops.narrow(unit.weights, 0, part.first, part.count);
    out.gradients = ops.narrow(unit.gradients, 0, part.first, part.count);
  }
  for (const PartTensor& tensor : layout.tensors) {
    T& to = tensor.kind == PartTensor::Kind::kWeights     ? out.weights
            : tensor.kind == PartTensor::Kind::kGradients ? out.gradients
                                                          : out.state[tensor.state];
    to = in_slot(tensor);
  }
  return out;
}

}  // namespace neap::step
