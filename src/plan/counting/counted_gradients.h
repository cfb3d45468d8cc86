// Simulates train/sharded_gradients.h: gradient shards that are offloaded to host memory.
//
// Threads   one.
// Cost      below a microsecond per piece, plus its norms.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "spec/types/homes.h"
#include "step/counting/counting_ops.h"
#include "step/units/gradient_slots.h"

namespace neap::plan {

class CountedGradients final : public step::GradientSlots<step::CountingOps>::Hosted {
  using T = step::CountedTensor;

 public:
  struct Piece {
    std::string_view slot;  ///< buffer of its unit
    T gradients;            ///< (count,)
  };
  /// `home` is the gradients'. `norms` computes those of a piece. A plan skips equal groups, so
  /// each group may be the last one. `ops` must outlive it.
  CountedGradients(step::CountingOps& ops, std::vector<Piece> pieces, spec::Home home,
                   std::function<void(std::size_t piece)> norms)
      : ops_(ops), pieces_(std::move(pieces)), home_(home), norms_(std::move(norms)) {}
  CountedGradients(const CountedGradients&) = delete;
  CountedGradients& operator=(const CountedGradients&) = delete;
  ~CountedGradients() override { ops_.wait_until(ops_.copied()); }

  void fetch(std::size_t piece) override {
    Slot& slot = slots_[pieces_[piece].slot];
    const double from = std::max(ops_.now(), slot.stored);
    slot.comes = spec::is_staged(home_);
    if (slot.comes) {
      slot.read = ops_.begin_disk(step::Direction::kToDevice, step::bytes(pieces_[piece].gradients),
                                  std::max(from, slot.written));
    } else {
      slot.filled = begin(step::Direction::kToDevice, piece, from);
    }
  }
  [[nodiscard]] T use(std::size_t piece) override {
    Slot& slot = slots_[pieces_[piece].slot];
    // The host waits for the read; then the copy starts.
    if (std::exchange(slot.comes, false)) {
      ops_.wait_until(slot.read);
      slot.filled = begin(step::Direction::kToDevice, piece, ops_.now());
    }
    ops_.wait_until(std::max(slot.filled, slot.stored));
    return pieces_[piece].gradients;
  }
  void leave(std::size_t piece, bool) override {
    norms_(piece);
    Slot& slot = slots_[pieces_[piece].slot];
    slot.stored = begin(step::Direction::kToHost, piece, std::max(ops_.now(), slot.written));
    if (spec::is_staged(home_))
      slot.written = ops_.begin_disk(step::Direction::kToHost,
                                     step::bytes(pieces_[piece].gradients), slot.stored);
  }

 private:
  double begin(step::Direction direction, std::size_t piece, double from) {
    return ops_.begin_copy(direction, step::bytes(pieces_[piece].gradients), from);
  }
  /// Times of its last copies.
  struct Slot {
    double filled = 0, stored = 0, written = 0, read = 0;
    bool comes = false;  // it is being loaded
  };
  step::CountingOps& ops_;
  std::vector<Piece> pieces_;
  spec::Home home_;
  std::function<void(std::size_t piece)> norms_;
  std::map<std::string_view, Slot> slots_;
};

}  // namespace neap::plan
