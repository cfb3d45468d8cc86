// Placement of optimizer states and gradients of a trained model: replicated, or sharded over ranks
// (ZeRO).
//
// Stage 0 replicates everything. In stage 1 each rank keeps the states of pieces of the trained
// units and updates their weights; then ranks all-gather the weights. Stage 2 also shards
// gradients, and stage 3 also shards weights. Units are cut into tiles. They are not cut if the
// optimizer's elements depend on each other. Every rank has about the same number of elements of
// each unit and in total. Bytes of tags, parts of an update, checkpoints and resuming follow from
// the pieces. A checkpoint has whole tensors, so it does not depend on the number of ranks or the
// stage.
//
// With hybrid sharding (spec/types/data_parallel.h), "rank" means a rank within a shard group.
//
// Threads   values and stateless functions.
// Cost      proportional to the number of trained units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "spec/job/optimizer.h"
#include "spec/model/layout.h"
#include "spec/model/unit_slices.h"
#include "spec/types/data_parallel.h"

namespace neap::spec {

/// Elements of a tile. Sums over gradients, weights and moments add the sums of tiles in ascending
/// order, so results are bitwise the same however tiles are assigned to ranks. Tiles are counted
/// from the start of a unit; for factored moments, from the first row of a parameter.
constexpr std::int64_t kSumTile = std::int64_t{1} << 22;

/// Elements of a trained unit whose states one rank keeps.
struct Piece {
  std::size_t unit = 0;
  std::int64_t first = 0, count = 0;
  std::int64_t slice_first = 0;  ///< offset among the rank's elements of all units
  // Location of the states:
  std::size_t part = 0;  ///< part of the optimizer's tag
  Bytes offset{};        ///< from the start of the part
};

/// A part of an optimizer's tag.
struct StatePart {
  std::string name;  ///< name of the unit, or kSlicePart
  Bytes bytes;
};
constexpr std::string_view kSlicePart = "slice";

/// A whole state tensor of the model, as stored in a checkpoint.
struct WholeState {
  std::string name;  ///< "block.0.exp_avg", "PARAMETER.exp_avg_sq_row"
  std::size_t unit = 0;
  std::size_t tensor = 0;  ///< in the unit's state
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t parameter = StateTensor::kWholeUnit;  ///< parameter that it belongs to
  int dimension = 0;                                 ///< dimension of the parameter that it follows
  /// Whether it has the unit's elements, so that it is cut like the unit.
  [[nodiscard]] bool flat() const { return parameter == StateTensor::kWholeUnit; }
};

/// The elements of a whole tensor that one rank keeps.
struct OwnedRange {
  std::int64_t rank = 0;
  std::int64_t first = 0, count = 0;
};

class StatePlacement {
 public:
  StatePlacement(const OptimizerSpec& optimizer, std::vector<FlatUnit> units,
                 const DataParallel& ranks = {}, std::int64_t tile = kSumTile);

  /// False if states are replicated.
  [[nodiscard]] bool sliced() const { return ranks_.slices_states(); }
  /// False if gradients are replicated.
  [[nodiscard]] bool slices_gradients() const { return ranks_.slices_gradients(); }
  [[nodiscard]] const OptimizerSpec& optimizer() const { return optimizer_; }
  [[nodiscard]] const std::vector<FlatUnit>& units() const { return units_; }

  /// The pieces of a rank, in the order of units; at most one per unit.
  [[nodiscard]] std::vector<Piece> pieces(std::int64_t rank) const;
  /// The states of a piece.
  [[nodiscard]] UnitState state(const Piece& piece) const;
  /// Only if sharded: the elements of each unit on each rank.
  [[nodiscard]] const UnitSlices& slices() const { return slices_; }
  [[nodiscard]] const std::vector<std::int64_t>& counts(std::size_t unit) const {
    return slices_.counts(unit);
  }
  [[nodiscard]] std::int64_t slice_elements() const { return slices_.slice_elements(); }
  /// The parts of an optimizer's tag: one per unit, or one for a rank's shard. The latter has the
  /// size of the largest shard on every rank.
  [[nodiscard]] std::vector<StatePart> parts() const;
  /// The rank with the most bytes of states.
  [[nodiscard]] std::int64_t fullest_rank() const { return fullest_; }

  /// In the order of units.
  [[nodiscard]] std::vector<WholeState> states() const;
  /// The owner of each element of a tensor, in ascending order. Without sharding, rank 0 owns
  /// everything.
  [[nodiscard]] std::vector<OwnedRange> owners(const WholeState& state) const;

 private:
  void find_fullest();
  /// The elements of a sharded unit on a rank; may be empty.
  [[nodiscard]] OwnedRange range(std::size_t unit, std::int64_t rank) const;

  OptimizerSpec optimizer_;
  std::vector<FlatUnit> units_;
  DataParallel ranks_;
  UnitSlices slices_;  // only if sharded
  std::int64_t fullest_ = 0;
};

}  // namespace neap::spec
