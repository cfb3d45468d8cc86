// Gradients of which a rank keeps a slice: memory for those of one unit at a time, where backward adds them.
//
// When a group of micro-batches has gone through a unit, its gradients are added up over ranks (along the
// tensor axis those of parameters that several of them have), and each rank adds its elements to its slice.
// Then the memory is the next unit's. The head comes first, then the blocks from the last to the first, then
// the embedding. A tied table is added to at both ends, so it has memory of its own.
//
// Threads   one at a time.   Failure   of the reduction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "step/gradient_norm.h"
#include "step/trained_unit.h"
#include "step/units.h"

namespace neap::step {

/// Parts of ROLE.unit_grads.
constexpr std::string_view kSharedSlot = "unit", kTiedSlot = "tied";

/// The part that a trained unit's gradients are added in. `tied`: the embedding's table is the head's, too.
inline std::string_view gradient_slot(const spec::FlatUnit& unit, bool tied) {
  return tied && key_of(unit) == key_of(Table::kEmbedding) ? kTiedSlot : kSharedSlot;
}

template <class Ops>
class GradientSlots final : public GradientSink<typename Ops::Tensor> {
  using T = typename Ops::Tensor;

 public:
  struct Unit {
    spec::FlatUnit unit;
    T gradients;  ///< (elements,), of its slot
  };
  /// reduce(number, gradients): the sum over ranks, of each rank's elements on that rank.
  using Reduce = std::function<void(std::size_t unit, const T& gradients)>;
  /// `units`: all trained ones. `pieces`: of some of them, of this rank, which has this shard; `ops` outlives the
  /// slots.
  GradientSlots(Ops& ops, std::vector<Unit> units, std::vector<TrainedUnit<T>> pieces, bool tied,
                const spec::TensorShard& shard, Reduce reduce)
      : ops_(ops),
        units_(std::move(units)),
        pieces_(std::move(pieces)),
        tied_(tied),
        shard_(shard),
        reduce_(std::move(reduce)) {}

  void begin_group(bool) override {}
  [[nodiscard]] bool takes_groups() const override { return true; }
  [[nodiscard]] std::vector<T> new_gradients(UnitKey key) override {
    std::vector<T> out;
    for (const Unit& unit : units_)
      if (first_use(unit.unit) == key) out.push_back(unit.gradients);
    return out;
  }
  void take(UnitKey key) override {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (key_of(units_[u].unit) != key) continue;
      const T& gradients = units_[u].gradients;
      sum_spread_gradients(ops_, units_[u].unit, gradients, shard_);
      reduce_(u, gradients);
      for (const TrainedUnit<T>& piece : pieces_) {
        if (piece.unit.name == units_[u].unit.name)
          ops_.add_(piece.gradients,
                    ops_.narrow(gradients, 0, piece.first, piece.gradients.size(0)));
      }
    }
  }

 private:
  [[nodiscard]] UnitKey first_use(const spec::FlatUnit& unit) const {
    return gradient_slot(unit, tied_) == kTiedSlot ? key_of(Table::kHead) : key_of(unit);
  }

  Ops& ops_;
  std::vector<Unit> units_;
  std::vector<TrainedUnit<T>> pieces_;
  bool tied_;
  spec::TensorShard shard_;
  Reduce reduce_;
};

}  // namespace neap::step
