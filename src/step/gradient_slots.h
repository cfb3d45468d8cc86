// Gradients of which a rank keeps a slice: memory for those of two units at a time, where backward adds them.
//
// When a group of micro-batches has gone through a unit, its gradients are added up over ranks (along the
// tensor axis those of parameters that several of them have), while backward goes on with the next one in the other
// memory. Then each rank adds its elements to its slice, and the memory is the next unit's but one. The head comes
// first, then the blocks from the last to the first, then the embedding, behind which all sums are waited for. A tied
// table is added to at both ends, so it has memory of its own.
//
// Threads   one at a time.   Failure   of the sums.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "step/gradient_norm.h"
#include "step/trained_unit.h"
#include "step/units.h"

namespace neap::step {

/// Parts of ROLE.unit_grads: two for units by turns, and one for a tied table.
constexpr std::array<std::string_view, 2> kSharedSlots = {"unit.0", "unit.1"};
constexpr std::string_view kTiedSlot = "tied";

/// The part that a trained unit's gradients are added in, of a model or a stage of it. The first part has blocks only.
inline std::string_view gradient_slot(const spec::FlatUnit& unit, const spec::Architecture& shape,
                                      spec::Head head) {
  const bool tied = shape.has_head() && shape.ties_table(head);
  if (tied && key_of(unit) == key_of(Table::kEmbedding)) return kTiedSlot;
  if (unit.block < 0) return kSharedSlots[1];
  const std::int64_t behind = shape.blocks() - 1 - shape.place_of_block(unit.block);
  return kSharedSlots[behind % 2 == 0 ? 0 : 1];
}

template <class Ops>
class GradientSlots final : public GradientSink<typename Ops::Tensor> {
  using T = typename Ops::Tensor;

 public:
  struct Unit {
    spec::FlatUnit unit;
    T gradients;  ///< (elements,), of its slot
  };
  /// Sums over ranks, of each rank's elements on that rank.
  struct Sums {
    /// Begins those of a unit behind what was computed so far. Their number.
    std::function<std::int64_t(std::size_t unit, const T& gradients)> begin;
    /// What is computed from now on begins when those with the number are there.
    std::function<void(std::int64_t)> wait;
  };
  /// `units`: all trained ones of a model, or a stage of it, with this shape. `pieces`: of some of them, of this rank;
  /// `ops` outlives the slots.
  GradientSlots(Ops& ops, std::vector<Unit> units, std::vector<TrainedUnit<T>> pieces,
                const spec::Architecture& shape, spec::Head head, Sums sums)
      : ops_(ops),
        units_(std::move(units)),
        pieces_(std::move(pieces)),
        shape_(shape),
        shard_(shape.tensor),
        sums_(std::move(sums)) {
    for (const Unit& unit : units_) slots_.push_back(gradient_slot(unit.unit, shape, head));
  }

  void begin_group(bool) override {}
  [[nodiscard]] bool takes_groups() const override { return true; }
  [[nodiscard]] std::vector<T> new_gradients(UnitKey key) override {
    std::vector<T> out;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (first_use(u) != key) continue;
      end_sums(slots_[u]);
      out.push_back(units_[u].gradients);
    }
    return out;
  }
  void take(UnitKey key) override {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (key_in_stage(u) != key) continue;
      const T& gradients = units_[u].gradients;
      sum_spread_gradients(ops_, units_[u].unit, gradients, shard_);
      begun_.push_back({u, sums_.begin(u, gradients)});
    }
    if (key == key_of(Table::kEmbedding)) end_group();
  }
  void end_group() override {
    while (!begun_.empty()) end_sums(slots_[begun_.front().unit]);
  }
  // Slices rest on the device.
  [[nodiscard]] typename GradientSink<T>::Leaving leaving(UnitKey) const override { return {}; }
  void sum(UnitKey, const T&) override {}

 private:
  struct Begun {
    std::size_t unit = 0;
    std::int64_t number = 0;
  };
  // Passes count the blocks of a stage.
  [[nodiscard]] UnitKey key_in_stage(std::size_t unit) const {
    const UnitKey key = key_of(units_[unit].unit);
    return units_[unit].unit.block < 0 ? key : shape_.place_of_block(key);
  }
  [[nodiscard]] UnitKey first_use(std::size_t unit) const {
    return slots_[unit] == kTiedSlot ? key_of(Table::kHead) : key_in_stage(unit);
  }
  // Of the unit that a slot has: its elements of this rank go to the slice.
  void end_sums(std::string_view slot) {
    const auto found = std::find_if(begun_.begin(), begun_.end(),
                                    [&](const Begun& begun) { return slots_[begun.unit] == slot; });
    if (found == begun_.end()) return;
    const Begun begun = *found;
    begun_.erase(found);
    sums_.wait(begun.number);
    for (const TrainedUnit<T>& piece : pieces_) {
      if (piece.unit.name == units_[begun.unit].unit.name)
        ops_.add_(piece.gradients, ops_.narrow(units_[begun.unit].gradients, 0, piece.first,
                                               piece.gradients.size(0)));
    }
  }

  Ops& ops_;
  std::vector<Unit> units_;
  std::vector<TrainedUnit<T>> pieces_;
  spec::Architecture shape_;
  spec::TensorShard shard_;
  Sums sums_;
  std::vector<std::string_view> slots_;  // by unit
  std::vector<Begun> begun_;             // at most one a slot
};

}  // namespace neap::step
