// Where the optimizer states and gradients of a trained model are: on every rank, or each rank's slice of
// them (ZeRO).
//
// Stage 0 keeps all states on every rank. Stage 1 gives each rank pieces of the trained units: it keeps
// their states and updates their weights, and the ranks gather the weights. Stage 2 keeps the gradients of
// these pieces only, stage 3 the weights of these, too. Units are divided into tiles, or where an optimizer's
// elements depend on each other not at all; every rank has about as many elements of each unit, and of all
// together. Bytes of tags, the parts of an update, checkpoints and resuming follow from the pieces. A checkpoint
// has whole tensors, so it does not depend on ranks and stage.
//
// Where ranks are replicas of shards (spec/data_parallel.h), a rank here is one of those that slice together.
//
// Threads   values and functions without state.
//
// Cost      proportional to the number of trained units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "spec/data_parallel.h"
#include "spec/layout.h"
#include "spec/optimizer.h"
#include "spec/unit_slices.h"

namespace neap::spec {

/// Elements of a tile. Sums over gradients, weights and moments are sums of tiles in ascending order,
/// counted from the first element of a unit, and of factored moments from the first row of a parameter:
/// they have the same bits wherever a unit is cut between tiles, and on whatever rank a tile is.
constexpr std::int64_t kTile = std::int64_t{1} << 22;

/// Elements of a trained unit whose states a rank keeps.
struct Piece {
  std::size_t unit = 0;
  std::int64_t first = 0, count = 0;
  std::int64_t slice_first = 0;  ///< of the rank's elements of all units together
  // Of the states:
  std::size_t part = 0;  ///< of the optimizer's tag
  Bytes offset{};        ///< from the part's start
};

/// A part of an optimizer's tag.
struct StatePart {
  std::string name;  ///< the unit's, or kSlicePart
  Bytes bytes;
};
constexpr std::string_view kSlicePart = "slice";

/// A state tensor of the model, whole, as a checkpoint has it.
struct WholeState {
  std::string name;  ///< "block.0.exp_avg", "PARAMETER.exp_avg_sq_row"
  std::size_t unit = 0;
  std::size_t tensor = 0;  ///< in the unit's state
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t parameter = StateTensor::kWholeUnit;  ///< that it belongs to
  int dimension = 0;                                 ///< along which, of a parameter
  /// Its elements are the unit's: cut with it.
  [[nodiscard]] bool flat() const { return parameter == StateTensor::kWholeUnit; }
};

/// Elements of a whole tensor that one rank keeps.
struct OwnedRange {
  std::int64_t rank = 0;
  std::int64_t first = 0, count = 0;
};

class StatePlacement {
 public:
  StatePlacement(const OptimizerSpec& optimizer, std::vector<FlatUnit> units,
                 const DataParallel& ranks = {}, std::int64_t tile = kTile);

  /// False: every rank has every state.
  [[nodiscard]] bool sliced() const { return ranks_.slices_states(); }
  /// False: every rank has every gradient.
  [[nodiscard]] bool slices_gradients() const { return ranks_.slices_gradients(); }
  [[nodiscard]] const OptimizerSpec& optimizer() const { return optimizer_; }
  [[nodiscard]] const std::vector<FlatUnit>& units() const { return units_; }

  /// Those of a rank, in the order of the units: at most one of each.
  [[nodiscard]] std::vector<Piece> pieces(std::int64_t rank) const;
  /// The states of a piece.
  [[nodiscard]] UnitState state(const Piece& piece) const;
  /// Of a sliced placement: the elements of each unit that each rank has.
  [[nodiscard]] const UnitSlices& slices() const { return slices_; }
  [[nodiscard]] const std::vector<std::int64_t>& counts(std::size_t unit) const {
    return slices_.counts(unit);
  }
  [[nodiscard]] std::int64_t slice_elements() const { return slices_.slice_elements(); }
  /// Of an optimizer's tag: one for each unit, or one for a slice, which is as large on every rank as on the
  /// one that needs most.
  [[nodiscard]] std::vector<StatePart> parts() const;
  /// The rank with most bytes of states.
  [[nodiscard]] std::int64_t fullest_rank() const { return fullest_; }

  /// Unit by unit.
  [[nodiscard]] std::vector<WholeState> states() const;
  /// Who has which elements of a tensor, ascending, each element once. Not sliced: rank 0 for all.
  [[nodiscard]] std::vector<OwnedRange> owners(const WholeState& state) const;

 private:
  void find_fullest();
  /// Of a unit that is sliced; no elements: the rank has none of it.
  [[nodiscard]] OwnedRange range(std::size_t unit, std::int64_t rank) const;

  OptimizerSpec optimizer_;
  std::vector<FlatUnit> units_;
  DataParallel ranks_;
  UnitSlices slices_;  // of a sliced placement
  std::int64_t fullest_ = 0;
};

}  // namespace neap::spec
