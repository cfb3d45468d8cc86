// Sharded gradients (ZeRO-2 and 3): memory for full gradients of two units at a time, in which
// backward accumulates them.
//
// When a group of micro-batches has passed a unit, its gradients are reduce-scattered over ranks
// while backward continues with the next unit in the other buffer. Parameters that several
// tensor-parallel ranks hold are also summed over those. Then each rank adds its elements to its
// shard, and the buffer is free. The head comes first, then the blocks from last to first, then the
// embedding, after which all reductions are waited for. A tied embedding gets gradients at both
// ends, so it has a buffer of its own. An offloaded shard is loaded unit by unit into separate
// memory, and copied back. Units of different chunks of a stage are visited in different orders.
//
// Threads   one at a time.
// Failure   that of the reductions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "step/units/gradient_norm.h"
#include "step/units/trained_unit.h"
#include "step/units/units.h"

namespace neap::step {

/// Parts of ROLE.unit_grads: two for units in turn, and one for a tied embedding.
constexpr std::array<std::string_view, 2> kSharedSlots = {"unit.0", "unit.1"};
constexpr std::string_view kTiedSlot = "tied";
constexpr std::string_view kOwnPrefix = "own.";

/// For offloaded gradients: the part of the same tag in which a rank's shard of a unit with this
/// slot is accumulated.
[[nodiscard]] inline std::string own_slot(std::string_view slot) {
  return std::string(kOwnPrefix) + std::string(slot);
}

[[nodiscard]] inline bool is_own_slot(std::string_view part) {
  return part.starts_with(kOwnPrefix);
}

/// The part for gradients of a trained unit of a model or stage. The first part is only for blocks.
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
    T gradients;  ///< (elements,), in its slot
  };
  /// Reduce-scatter over ranks.
  struct Sums {
    /// Starts the reduction of a unit after the computation so far. Returns its number.
    std::function<std::int64_t(std::size_t unit, const T& gradients)> begin;
    /// Later computation waits for the reductions with this number.
    std::function<void(std::int64_t)> wait;
  };
  /// Gradients of pieces that are offloaded.
  class Hosted {
   public:
    Hosted() = default;
    Hosted(const Hosted&) = delete;
    Hosted& operator=(const Hosted&) = delete;
    virtual ~Hosted() = default;
    /// Starts to load a piece's gradients, which groups of this mini-batch have added.
    virtual void fetch(std::size_t piece) = 0;
    /// Their memory (count,), for the next computation.
    [[nodiscard]] virtual T use(std::size_t piece) = 0;
    /// Starts to copy them back. `complete`: nothing more is added to them.
    virtual void leave(std::size_t piece, bool complete) = 0;
  };
  /// `units` are all trained units of a model or stage with this shape. `pieces` are this rank's
  /// pieces. `ops` must outlive the slots, and so must `hosted`, which is set if the pieces'
  /// gradients are offloaded.
  GradientSlots(Ops& ops, std::vector<Unit> units, std::vector<TrainedUnit<T>> pieces,
                const spec::Architecture& shape, spec::Head head, Sums sums,
                Hosted* hosted = nullptr)
      : ops_(ops),
        units_(std::move(units)),
        pieces_(std::move(pieces)),
        shape_(shape),
        shard_(shape.tensor),
        sums_(std::move(sums)),
        hosted_(hosted) {
    const bool joins = shape.pipeline.stages > 1 && shape.ties_table(head);
    for (const Unit& unit : units_) {
      slots_.push_back(gradient_slot(unit.unit, shape, head));
      joined_.push_back(joins && key_of(unit.unit) == key_of(Table::kEmbedding));
    }
    added_.resize(units_.size());
  }

  void begin_mini_batch(std::int64_t groups) override {
    groups_ = groups;
    std::fill(added_.begin(), added_.end(), 0);
  }
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
      if (hosted_ == nullptr || added_[u] == 0) continue;
      for_each_piece(u, [&](std::size_t piece) { hosted_->fetch(piece); });
    }
    if (key == key_of(Table::kEmbedding)) end_group();
  }
  void end_group() override {
    while (!begun_.empty()) end_sums(slots_[begun_.front().unit]);
  }
  void complete_table(const std::function<void(const T&)>& visit) override {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!joined_[u]) continue;
      for_each_piece(u, [&](std::size_t piece) {
        if (hosted_ == nullptr) return visit(pieces_[piece].gradients);
        hosted_->fetch(piece);
        visit(hosted_->use(piece));
        hosted_->leave(piece, true);
      });
    }
  }
  // Offloaded gradients are handled here, not by the caller.
  [[nodiscard]] typename GradientSink<T>::Leaving leaving(UnitKey) const override { return {}; }
  void sum(UnitKey, const T&) override {}

 private:
  struct Begun {
    std::size_t unit = 0;
    std::int64_t number = 0;
  };
  // Passes number blocks within a stage.
  [[nodiscard]] UnitKey key_in_stage(std::size_t unit) const {
    return key_of(units_[unit].unit, shape_);
  }
  [[nodiscard]] UnitKey first_use(std::size_t unit) const {
    return slots_[unit] == kTiedSlot ? key_of(Table::kHead) : key_in_stage(unit);
  }
  // Ends the reduction of a slot's unit: this rank's elements are added to the shard.
  void end_sums(std::string_view slot) {
    const auto found = std::find_if(begun_.begin(), begun_.end(),
                                    [&](const Begun& begun) { return slots_[begun.unit] == slot; });
    if (found == begun_.end()) return;
    const Begun begun = *found;
    begun_.erase(found);
    sums_.wait(begun.number);
    const bool first = added_[begun.unit]++ == 0;
    const bool last = added_[begun.unit] == groups_ && !joined_[begun.unit];
    for_each_piece(begun.unit, [&](std::size_t piece) {
      const T own = hosted_ != nullptr ? hosted_->use(piece) : pieces_[piece].gradients;
      if (hosted_ != nullptr && first) ops_.zero_(own);
      ops_.add_(own,
                ops_.narrow(units_[begun.unit].gradients, 0, pieces_[piece].first, own.size(0)));
      if (hosted_ != nullptr) hosted_->leave(piece, last);
    });
  }
  // The pieces of a unit.
  template <class Visit>
  void for_each_piece(std::size_t unit, const Visit& visit) const {
    for (std::size_t p = 0; p < pieces_.size(); ++p)
      if (pieces_[p].unit.name == units_[unit].unit.name) visit(p);
  }

  Ops& ops_;
  std::vector<Unit> units_;
  std::vector<TrainedUnit<T>> pieces_;
  spec::Architecture shape_;
  spec::TensorShard shard_;
  Sums sums_;
  Hosted* hosted_;
  std::int64_t groups_ = 0;              // groups per mini-batch
  std::vector<std::int64_t> added_;      // per unit: groups that have added to its gradients
  std::vector<std::string_view> slots_;  // per unit
  std::vector<bool> joined_;             // per unit: another stage also has it
  std::vector<Begun> begun_;             // at most one per slot
};

}  // namespace neap::step
