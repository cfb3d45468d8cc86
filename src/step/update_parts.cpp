#include "step/update_parts.h"

#include <algorithm>

namespace neap::step {
namespace {

// Copies of a span take long enough to reach the link's rate, and few parts of a small model would not
// hide behind each other.
constexpr std::int64_t kLeastSpan = std::int64_t{1} << 16;
constexpr std::int64_t kSpansOfModel = 64;

bool is_elementwise(spec::OptimizerKind kind) {
  return kind == spec::OptimizerKind::kAdamW || kind == spec::OptimizerKind::kSgd;
}

Bytes sum(const std::vector<PartTensor>& tensors, bool PartTensor::*counted) {
  Bytes out;
  for (const PartTensor& tensor : tensors)
    if (tensor.*counted) out += tensor.bytes();
  return out;
}

}  // namespace

Bytes PartLayout::fetched() const {
  return sum(tensors, &PartTensor::fetched);
}
Bytes PartLayout::stored() const {
  return sum(tensors, &PartTensor::stored);
}

UpdateParts::UpdateParts(const spec::OptimizerSpec& optimizer, std::vector<spec::FlatUnit> units,
                         std::vector<bool> on_host)
    : optimizer_(optimizer), units_(std::move(units)), on_host_(std::move(on_host)) {
  const std::int64_t all = spec::total_elements(units_);
  const std::int64_t span =
      std::clamp(all / kSpansOfModel / kLeastSpan * kLeastSpan, kLeastSpan, kSpan);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    states_.push_back(optimizer_.state(units_[u]));
    const std::int64_t elements = units_[u].elements;
    const std::int64_t step = is_elementwise(optimizer_.kind) ? span : elements;
    for (std::int64_t first = 0; first < elements; first += step)
      parts_.push_back({u, first, std::min(step, elements - first)});
  }
}

PartLayout UpdateParts::layout(const UpdatePart& part) const {
  PartLayout out;
  const auto add = [&](PartTensor tensor) {
    tensor.slot_offset = out.bytes;
    out.bytes = round_up(out.bytes + tensor.bytes(), spec::kStateAlignment);
    out.tensors.push_back(tensor);
  };
  const auto add_flat = [&](PartTensor::Kind kind, Dtype dtype, bool fetched, bool stored) {
    add({kind, 0, part.count, dtype, spec::tensor_bytes(part.first, dtype), {}, fetched, stored});
  };
  if (on_host(part.unit)) {
    // A master takes the update; the weights are rounded from it.
    add_flat(PartTensor::Kind::kWeights, optimizer_.weights, !optimizer_.has_master(), true);
    add_flat(PartTensor::Kind::kGradients, optimizer_.gradients, true, false);
  }
  const std::vector<spec::StateTensor>& states = states_[part.unit].tensors();
  for (std::size_t i = 0; i < states.size(); ++i) {
    const spec::StateTensor& state = states[i];
    const bool flat = state.parameter == spec::StateTensor::kWholeUnit;
    add({PartTensor::Kind::kState,
         i,
         flat ? part.count : state.elements,
         state.dtype,
         state.offset + (flat ? spec::tensor_bytes(part.first, state.dtype) : Bytes()),
         {}});
  }
  return out;
}

Bytes UpdateParts::slot_bytes() const {
  // A slot has an address even where nothing comes to it. The first part of a unit is its largest.
  Bytes most = spec::kStateAlignment;
  for (const UpdatePart& part : parts_)
    if (part.first == 0) most = std::max(most, layout(part).bytes);
  return most;
}

}  // namespace neap::step
