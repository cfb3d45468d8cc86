// How an update goes through trained units whose optimizer states rest on the host: in parts that come
// to slots of device memory, are stepped there and go back.
//
// A part is a span of a rank's piece of a unit (spec/placement.h) where the optimizer's elements do not
// depend on each other, else a whole unit. Of a unit whose weights and gradients rest on the host as well,
// these come with the states, and so do slices that rest there. States, and blocks, may rest on disk instead:
// they pass windows of host memory.
//
// Threads   values and functions without state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "spec/placement.h"
#include "step/streamed_kind.h"
#include "step/trained_unit.h"

namespace neap::step {

struct UpdatePart {
  std::size_t piece = 0, unit = 0;
  std::int64_t first = 0, count = 0;  ///< of the unit's elements
};

/// A tensor of a part: where it rests, and where it is in a slot.
struct PartTensor {
  using Kind = StreamedKind;
  Kind kind = Kind::kStates;
  std::size_t state = 0;  ///< of kStates: its place in TrainedUnit::state
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  /// From the start of the unit's weights or gradients, of the rank's slice of all of these, or of the part of the tag
  /// that has the states.
  Bytes storage_offset;
  Bytes slot_offset;
  bool fetched = true, stored = true;
  bool on_disk = false;   ///< it rests there, and passes a window of host memory
  Bytes window_offset{};  ///< in that
  [[nodiscard]] Bytes bytes() const { return spec::tensor_bytes(elements, dtype); }
};
struct PartLayout {
  std::vector<PartTensor> tensors;
  Bytes bytes;   ///< of a slot
  Bytes window;  ///< what of one it takes
  [[nodiscard]] Bytes fetched() const;
  [[nodiscard]] Bytes stored() const;
  // Of these, from and to a disk:
  [[nodiscard]] Bytes disk_read() const;
  [[nodiscard]] Bytes disk_written() const;
};

/// A span of a unit that rests on the host and whose weights several ranks have stepped: it comes together in a slot,
/// each rank its own, and the others' leave.
struct GatheredPart {
  std::size_t unit = 0;
  std::int64_t first = 0;            ///< of the unit's elements
  std::vector<std::int64_t> counts;  ///< elements of each rank, one after another
  bool on_disk = false;              ///< it rests there, and passes a window
  struct Range {
    std::int64_t first = 0, count = 0;  ///< of the part's elements
  };
  /// Of a range: from the start of the unit's weights, and in the window, as in pages of the file.
  [[nodiscard]] Bytes storage_offset(const Range& range, Dtype weights) const;
  [[nodiscard]] Bytes window_offset(const Range& range, Dtype weights) const;
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] Range own(std::int64_t rank) const;
  /// Those before and behind a rank's own. A range may be empty.
  [[nodiscard]] std::array<Range, 2> others(std::int64_t rank) const;
};

/// One part comes and one goes while a third is stepped.
constexpr std::size_t kUpdateSlots = 3;

/// A rank's slices that rest on the host.
struct SlicesOnHost {
  bool weights = false, gradients = false;
};

/// What rests on disk.
struct RestsOnDisk {
  bool states = false;
  bool blocks =
      false;  ///< weights and gradients of blocks that else rest on the host, or slices of them
};
/// There: two more parts are read ahead, and one is being written. A part is in host memory as it is in pages of the
/// file, whose other bytes come with it.
constexpr std::size_t kPartsAhead = 2;
constexpr std::size_t kUpdateWindows = kUpdateSlots + kPartsAhead + 1;
constexpr Bytes kWindowPage = 4_KiB;

class UpdateParts {
 public:
  /// Those of a rank. `on_host`: of each unit, whether its weights and gradients rest there; `slices`: whether the
  /// rank's slices of all units' do.
  UpdateParts(spec::StatePlacement placement, std::int64_t rank, std::vector<bool> on_host,
              SlicesOnHost slices = {}, RestsOnDisk on_disk = {});

  /// In the order in which they are stepped: unit by unit.
  [[nodiscard]] const std::vector<UpdatePart>& list() const { return parts_; }
  [[nodiscard]] PartLayout layout(const UpdatePart& part) const;
  [[nodiscard]] bool on_host(std::size_t unit) const { return on_host_[unit]; }
  /// Of the largest part.
  [[nodiscard]] Bytes slot_bytes() const;
  /// Of a window, for the largest part.
  [[nodiscard]] Bytes window_bytes() const;
  /// Of the units on the host where states are sliced, in slots of so many bytes, and of those on disk in windows.
  [[nodiscard]] std::vector<GatheredPart> gathered(Bytes slot, Bytes window) const;

 private:
  [[nodiscard]] bool rests_on_disk(std::size_t unit) const {
    return on_disk_.blocks && (slices_.weights || placement_.units()[unit].block >= 0);
  }
  spec::StatePlacement placement_;
  std::vector<spec::Piece> pieces_;
  std::vector<spec::UnitState> states_;  // one a piece
  std::vector<bool> on_host_;
  SlicesOnHost slices_;
  RestsOnDisk on_disk_;
  std::vector<UpdatePart> parts_;
};

/// The part of `piece` that lies in a slot: in_slot(PartTensor) makes its tensors; what does not come to
/// the slot is where it was.
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
