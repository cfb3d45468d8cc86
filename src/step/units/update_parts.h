// Updates of trained units with offloaded optimizer states, in parts: each is loaded into a buffer
// ("slot") on the device, updated, and copied back.
//
// A part is a span of a rank's piece of a unit (spec/job/placement.h), or a whole unit if the
// optimizer's elements depend on each other. Offloaded weights and gradients of a unit, and
// offloaded ZeRO shards, are loaded together with the states. States and blocks may also be on
// disk; then they pass through pinned staging buffers ("windows").
//
// Threads   values and stateless functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "spec/job/placement.h"
#include "spec/types/homes.h"
#include "step/units/streamed_kind.h"
#include "step/units/trained_unit.h"

namespace neap::step {

struct UpdatePart {
  std::size_t piece = 0, unit = 0;
  std::int64_t first = 0, count = 0;  ///< of the unit's elements
};

/// A tensor of a part: where it is stored, and its place in a slot.
struct PartTensor {
  using Kind = StreamedKind;
  Kind kind = Kind::kStates;
  std::size_t state = 0;  ///< for kStates: index in TrainedUnit::state
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  /// From the start of the unit's weights or gradients, of the rank's shard, or of the tag's part
  /// with the states.
  Bytes storage_offset;
  Bytes slot_offset;
  bool fetched = true, stored = true;
  bool on_disk = false;   ///< it is on disk, and passes through a staging buffer
  Bytes window_offset{};  ///< offset in that buffer
  [[nodiscard]] Bytes bytes() const { return spec::tensor_bytes(elements, dtype); }
};
struct PartLayout {
  std::vector<PartTensor> tensors;
  Bytes bytes;   ///< of a slot
  Bytes window;  ///< bytes of a staging buffer that it uses
  [[nodiscard]] Bytes fetched() const;
  [[nodiscard]] Bytes stored() const;
  // Bytes of these that are read from and written to disk:
  [[nodiscard]] Bytes disk_read() const;
  [[nodiscard]] Bytes disk_written() const;
};

/// A span of an offloaded unit whose weights several ranks have updated. Each rank loads its own
/// elements into a slot, the span is all-gathered there, and the others' elements are copied back.
struct GatheredPart {
  std::size_t unit = 0;
  std::int64_t first = 0;            ///< of the unit's elements
  std::vector<std::int64_t> counts;  ///< elements per rank, in the order of ranks
  bool on_disk = false;              ///< it is on disk, and passes through a staging buffer
  struct Range {
    std::int64_t first = 0, count = 0;  ///< of the part's elements
  };
  /// The offset of a range: from the start of the unit's weights, and in the staging buffer, with
  /// the same offset within a page as in the file.
  [[nodiscard]] Bytes storage_offset(const Range& range, Dtype weights) const;
  [[nodiscard]] Bytes window_offset(const Range& range, Dtype weights) const;
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] Range own(std::int64_t rank) const;
  /// The ranges before and after a rank's own. A range may be empty.
  [[nodiscard]] std::array<Range, 2> others(std::int64_t rank) const;
};

/// One part is loaded and one is stored while a third is updated.
constexpr std::size_t kUpdateSlots = 3;

/// For parts on disk: two more are read ahead, and one is being written. A part has the same offset
/// within a page as in the file, and whole pages are transferred.
constexpr std::size_t kPartsAhead = 2;
constexpr std::size_t kUpdateWindows = kUpdateSlots + kPartsAhead + 1;
constexpr Bytes kWindowPage = 4_KiB;

class UpdateParts {
 public:
  /// The parts of a rank. `on_host`: for each unit, whether its weights and gradients are offloaded
  /// as a whole. `storage`: of the trained units.
  UpdateParts(spec::StatePlacement placement, std::int64_t rank, std::vector<bool> on_host,
              const spec::ModelStorage& storage = {});

  /// In the order of updates: unit by unit.
  [[nodiscard]] const std::vector<UpdatePart>& list() const { return parts_; }
  [[nodiscard]] PartLayout layout(const UpdatePart& part) const;
  [[nodiscard]] bool on_host(std::size_t unit) const { return on_host_[unit]; }
  /// Size of the largest part.
  [[nodiscard]] Bytes slot_bytes() const;
  /// Size of a staging buffer for the largest part.
  [[nodiscard]] Bytes window_bytes() const;
  /// Spans of offloaded units with sharded states that must be gathered, in slots of this size; for
  /// units on disk, also in staging buffers of this size.
  [[nodiscard]] std::vector<GatheredPart> gathered(Bytes slot, Bytes window) const;

 private:
  [[nodiscard]] bool rests_on_disk(std::size_t unit) const {
    return spec::is_staged(storage_.layers) &&
           (storage_.streams_shard() || placement_.units()[unit].block >= 0);
  }
  spec::StatePlacement placement_;
  std::vector<spec::Piece> pieces_;
  std::vector<spec::UnitState> states_;  // one per piece
  std::vector<bool> on_host_;
  spec::ModelStorage storage_;
  std::vector<UpdatePart> parts_;
};

/// The part of `piece` that is in a slot; in_slot(PartTensor) creates its tensors. Tensors that are
/// not loaded stay where they are.
template <class Ops, class InSlot, class T = typename Ops::Tensor>
TrainedUnit<T> part_of(Ops& ops, const TrainedUnit<T>& piece, const UpdatePart& part,
                       const PartLayout& layout, const InSlot& in_slot) {
  TrainedUnit<T> out;
  out.unit = piece.unit;
  out.index = piece.index;
  out.first = part.first;
  out.layout = piece.layout;
  out.state.resize(piece.state.size());
  if (!piece.on_host) {
    out.weights = ops.narrow(piece.weights, 0, part.first - piece.first, part.count);
    out.gradients = ops.narrow(piece.gradients, 0, part.first - piece.first, part.count);
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
