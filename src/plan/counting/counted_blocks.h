// Offloaded or sharded blocks and tables in a plan, and the parts of an update whose states are
// offloaded.
//
// Threads   one.
// Cost      below a microsecond per use.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "plan/counting/counted_slots.h"
#include "step/counting/counting_ops.h"
#include "step/units/slot_source.h"
#include "step/units/update_parts.h"

namespace neap::plan {

/// Blocks in prefetch buffers, for a plan. ops::make_slot_blocks makes those of a run.
class CountedBlocks final : public step::SlotSource<step::CountedTensor> {
  using T = step::CountedTensor;

 public:
  /// Either of the slots may be null. Everything must outlive it.
  CountedBlocks(step::CountingOps& ops, const step::Weights<T>& weights, CountedSlots* slots,
                CountedSlots* input_slots);

  /// Null: only inputs are offloaded.
  [[nodiscard]] CountedSlots* counted() const { return counted_; }
  [[nodiscard]] bool uses_alike() const override {
    return (counted_ != nullptr && counted_->layers().ranks) || weights_.architecture.chunks() == 1;
  }
  [[nodiscard]] bool has_gradients() const override {
    return counted_ != nullptr && counted_->layers().gradients.has_value();
  }
  [[nodiscard]] T rows_from_files(const T& table, const T& indices) override;

 private:
  [[nodiscard]] const step::Block<T>& block_in(std::size_t, std::size_t block) const override {
    return weights_.blocks[block];
  }
  [[nodiscard]] T gradients_in(std::size_t, step::UnitKey unit) const override {
    return counted_->gradients_of(unit);
  }
  [[nodiscard]] T inputs_in(std::size_t, std::int64_t, std::int64_t count) const override {
    return T::outside({count, weights_.architecture.hidden_size}, dtype_);
  }

  step::CountingOps& ops_;
  const step::Weights<T>& weights_;
  CountedSlots* counted_;
  spec::Dtype dtype_;
};

/// Parts of an update on simulated clocks. Each has its states in one of step::kUpdateSlots
/// prefetch buffers (bridge/streamed_states.h).
class CountedParts {
 public:
  explicit CountedParts(step::CountingOps& ops) : ops_(ops), begin_(ops.now()) {
    worked_.fill(begin_);
  }
  CountedParts(const CountedParts&) = delete;
  CountedParts& operator=(const CountedParts&) = delete;
  ~CountedParts() {
    for (std::size_t i = 0; i < writes_.size(); ++i) write(next_ + i);
    ops_.wait_until(ops_.copied());
  }
  /// Bytes that are on disk.
  struct Disk {
    double read = 0, written = 0;
  };
  /// Runs step() with the next part loaded.
  template <class Step>
  void visit(double fetched, double stored, const Disk& disk, const Step& step) {
    double& left = stored_[next_ % stored_.size()];  // of the part that used the buffer before
    double read = begin_;
    if (disk.read > 0) {
      const double written = written_[next_ % written_.size()];
      read = ops_.begin_disk(step::Direction::kToDevice, disk.read,
                             std::max(written, worked_before(step::kPartsAhead)));
      write(next_);
    }
    // It was queued when the part before the last one had been updated.
    const double here = ops_.begin_copy(step::Direction::kToDevice, fetched,
                                        std::max({worked_before(0), left, read}));
    ops_.wait_until(std::max(here, left));
    step();
    worked_[next_ % worked_.size()] = ops_.now();
    left = ops_.begin_copy(step::Direction::kToHost, stored, ops_.now());
    writes_[next_ % writes_.size()] = {disk.written, left};
    ++next_;
  }

 private:
  struct Write {
    double bytes = 0, from = 0;
  };
  /// The time of the update before which the next part was queued, or the same `parts` earlier.
  [[nodiscard]] double worked_before(std::size_t parts) const {
    const std::size_t back = step::kUpdateSlots - 1 + parts;
    return next_ < back ? begin_ : worked_[(next_ - back) % worked_.size()];
  }
  /// Writes the part that is writes_.size() places before `part`. The parts in between are read
  /// first.
  void write(std::size_t part) {
    const Write leaving = std::exchange(writes_[part % writes_.size()], {});
    if (leaving.bytes > 0)
      written_[(part + written_.size() - writes_.size()) % written_.size()] =
          ops_.begin_disk(step::Direction::kToHost, leaving.bytes, leaving.from);
  }
  step::CountingOps& ops_;
  double begin_;
  std::array<double, step::kUpdateSlots> stored_{};
  std::array<double, step::kUpdateWindows> written_{}, worked_{};
  std::array<Write, step::kUpdateSlots> writes_{};
  std::size_t next_ = 0;
};

}  // namespace neap::plan
