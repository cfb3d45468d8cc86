#include "step/units/update_parts.h"

#include <algorithm>
#include <numeric>

namespace neap::step {
namespace {

// A span is large enough for its copies to reach the link's throughput. A model has enough spans
// for copies and updates to overlap.
constexpr std::int64_t kLeastSpan = std::int64_t{1} << 16;
constexpr std::int64_t kSpansOfModel = 64;

Bytes sum(const std::vector<PartTensor>& tensors, bool PartTensor::*counted, bool on_disk = false) {
  Bytes out;
  for (const PartTensor& tensor : tensors)
    if (tensor.*counted && (tensor.on_disk || !on_disk)) out += tensor.bytes();
  return out;
}

}  // namespace

Bytes PartLayout::fetched() const {
  return sum(tensors, &PartTensor::fetched);
}
Bytes PartLayout::stored() const {
  return sum(tensors, &PartTensor::stored);
}

Bytes PartLayout::disk_read() const {
  return sum(tensors, &PartTensor::fetched, true);
}
Bytes PartLayout::disk_written() const {
  return sum(tensors, &PartTensor::stored, true);
}

UpdateParts::UpdateParts(spec::StatePlacement placement, std::int64_t rank,
                         std::vector<bool> on_host, const spec::ModelStorage& storage)
    : placement_(std::move(placement)),
      pieces_(placement_.pieces(rank)),
      on_host_(std::move(on_host)),
      storage_(storage) {
  const std::int64_t all = spec::total_elements(placement_.units());
  const std::int64_t span =
      std::clamp(all / kSpansOfModel / kLeastSpan * kLeastSpan, kLeastSpan, kSpan);
  const bool cut = spec::is_elementwise(placement_.optimizer().kind);
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const spec::Piece& piece = pieces_[p];
    states_.push_back(placement_.state(piece));
    const std::int64_t end = piece.first + piece.count;
    const std::int64_t step = cut ? span : piece.count;
    for (std::int64_t first = piece.first; first < end; first += step)
      parts_.push_back({p, piece.unit, first, std::min(step, end - first)});
  }
}

PartLayout UpdateParts::layout(const UpdatePart& part) const {
  PartLayout out;
  const auto add = [&](PartTensor tensor) {
    tensor.slot_offset = out.bytes;
    out.bytes = round_up(out.bytes + tensor.bytes(), spec::kStateAlignment);
    tensor.on_disk = tensor.kind == PartTensor::Kind::kStates ? spec::is_staged(storage_.states())
                                                              : rests_on_disk(part.unit);
    if (tensor.on_disk) {
      const Bytes in_page = tensor.storage_offset - round_down(tensor.storage_offset, kWindowPage);
      tensor.window_offset = out.window + in_page;
      out.window = round_up(tensor.window_offset + tensor.bytes(), kWindowPage);
    }
    out.tensors.push_back(tensor);
  };
  const auto add_flat = [&](PartTensor::Kind kind, std::int64_t first, Dtype dtype, bool fetched,
                            bool stored) {
    add({kind, 0, part.count, dtype, spec::tensor_bytes(first, dtype), {}, fetched, stored});
  };
  const spec::OptimizerSpec& optimizer = placement_.optimizer();
  const spec::Piece& piece = pieces_[part.piece];
  const std::int64_t in_slice = piece.slice_first + part.first - piece.first;
  const bool shard = storage_.streams_shard();
  if (on_host(part.unit) || shard) {
    // If there is a master copy, it takes the update, and the weights are rounded from it.
    add_flat(PartTensor::Kind::kWeights, shard ? in_slice : part.first, optimizer.weights,
             !optimizer.has_master(), true);
  }
  const bool gradient_shard = storage_.streams_gradients();
  if (on_host(part.unit) || gradient_shard)
    add_flat(PartTensor::Kind::kGradients, gradient_shard ? in_slice : part.first,
             optimizer.gradients, true, false);
  const std::vector<spec::StateTensor>& states = states_[part.piece].tensors();
  const std::int64_t before = part.first - piece.first;  // elements of the piece
  for (std::size_t i = 0; i < states.size(); ++i) {
    const spec::StateTensor& state = states[i];
    const bool flat = state.parameter == spec::StateTensor::kWholeUnit;
    add({PartTensor::Kind::kStates,
         i,
         flat ? part.count : state.elements,
         state.dtype,
         piece.offset + state.offset + (flat ? spec::tensor_bytes(before, state.dtype) : Bytes()),
         {}});
  }
  return out;
}

Bytes GatheredPart::storage_offset(const Range& range, Dtype weights) const {
  return spec::tensor_bytes(first + range.first, weights);
}
Bytes GatheredPart::window_offset(const Range& range, Dtype weights) const {
  return storage_offset(range, weights) - round_down(storage_offset({}, weights), kWindowPage);
}
std::int64_t GatheredPart::elements() const {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
GatheredPart::Range GatheredPart::own(std::int64_t rank) const {
  return {std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0}),
          counts[static_cast<std::size_t>(rank)]};
}
std::array<GatheredPart::Range, 2> GatheredPart::others(std::int64_t rank) const {
  const Range mine = own(rank);
  const std::int64_t end = mine.first + mine.count;
  return {{{0, mine.first}, {end, elements() - end}}};
}

std::vector<GatheredPart> UpdateParts::gathered(Bytes slot, Bytes window) const {
  std::vector<GatheredPart> out;
  if (!placement_.sliced()) return out;
  const std::int64_t width = element_bytes(placement_.optimizer().weights);
  for (std::size_t unit = 0; unit < on_host_.size(); ++unit) {
    if (!on_host_[unit]) continue;
    const bool disk = rests_on_disk(unit);
    // Wherever the part starts within a page.
    const Bytes room = disk ? std::min(slot, window - kWindowPage) : slot;
    const std::int64_t most = static_cast<std::int64_t>(room.count()) / width;
    const std::int64_t elements = placement_.units()[unit].elements;
    for (std::int64_t first = 0; first < elements; first += most) {
      const std::int64_t end = std::min(elements, first + most);
      GatheredPart& part = out.emplace_back(GatheredPart{unit, first, {}, disk});
      std::int64_t at = 0;  // start of a rank's elements
      for (const std::int64_t count : placement_.counts(unit)) {
        part.counts.push_back(
            std::max<std::int64_t>(0, std::min(end, at + count) - std::max(first, at)));
        at += count;
      }
    }
  }
  return out;
}

Bytes UpdateParts::slot_bytes() const {
  // A slot needs an address even if nothing is loaded. The first part of a piece is its largest.
  Bytes most = spec::kStateAlignment;
  for (const UpdatePart& part : parts_)
    if (part.first == pieces_[part.piece].first) most = std::max(most, layout(part).bytes);
  return most;
}

Bytes UpdateParts::window_bytes() const {
  Bytes most = kWindowPage;
  for (const UpdatePart& part : parts_) {
    if (part.first != pieces_[part.piece].first) continue;
    Bytes pages;  // wherever it starts within a page
    for (const PartTensor& tensor : layout(part).tensors)
      if (tensor.on_disk) pages += round_up(tensor.bytes(), kWindowPage) + kWindowPage;
    most = std::max(most, pages);
  }
  return most;
}

}  // namespace neap::step
