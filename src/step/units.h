// How passes get a block: from memory that holds the whole model, or from a source that has a few
// blocks on the device at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "step/block_window.h"
#include "step/weights.h"

namespace neap::step {

/// Memory on the device for a few blocks of a model that rests elsewhere, and in training for their
/// gradients, which rest there, too.
///
/// Threads   one at a time.   Failure   Error.
class BlockSlots {
 public:
  virtual ~BlockSlots() = default;
  /// The passes that follow, so that blocks come before they are used. Passes forward and back are those
  /// of a mini-batch.
  virtual void expect(Sweep sweep, std::int64_t passes) = 0;
  struct Place {
    std::size_t slot = 0;
    bool zero =
        false;  ///< the slot's gradients are garbage: whoever adds to them sets them to zero
    bool last = false;  ///< nothing is added to the block's gradients after this use
  };
  /// The slot that holds the block for what the device is given next, until release(block).
  [[nodiscard]] virtual Place use(std::size_t block, BlockUse how) = 0;
  virtual void release(std::size_t block) noexcept = 0;
};

/// The same for passes, which take blocks bound to their slot's memory.
template <class T>
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual void expect(Sweep sweep, std::int64_t passes) = 0;
  [[nodiscard]] virtual const Block<T>& use(std::size_t block, BlockUse how) = 0;
  virtual void release(std::size_t block) noexcept = 0;
  /// Of a block that is used for its gradients: those that hold garbage and have to start at zero
  /// (elements,); undefined: none.
  [[nodiscard]] virtual T new_gradients(std::size_t block) = 0;
  /// Of a block that is used for its gradients: all of them (elements,) where nothing is added after this
  /// use; undefined where something is, or it has none.
  [[nodiscard]] virtual T complete_gradients(std::size_t block) = 0;

  /// Norms of tiles of complete gradients (step/optimizer.h), until the next ones are kept.
  void keep_norms(std::size_t block, std::vector<double> norms) {
    norms_[block] = std::move(norms);
  }
  [[nodiscard]] const std::vector<double>& norms(std::size_t block) const {
    return norms_.at(block);
  }

 private:
  std::map<std::size_t, std::vector<double>> norms_;
};

template <class T>
void expect_passes(const Weights<T>& w, Sweep sweep, std::int64_t passes) {
  if (w.source != nullptr) w.source->expect(sweep, passes);
}

/// A block of a model while its weights are on the device.
template <class T>
class UsedBlock {
 public:
  UsedBlock(const Weights<T>& w, std::size_t i, BlockUse how = BlockUse::kRead)
      : source_(w.source), index_(i), block_(source_ ? source_->use(i, how) : w.blocks[i]) {}
  UsedBlock(const UsedBlock&) = delete;
  UsedBlock& operator=(const UsedBlock&) = delete;
  ~UsedBlock() {
    if (source_ != nullptr) source_->release(index_);
  }
  [[nodiscard]] const Block<T>& operator*() const { return block_; }
  /// Before anything is added to its gradients.
  template <class Ops>
  void begin_gradients(Ops& ops) {
    if (source_ == nullptr) return;
    const T gradients = source_->new_gradients(index_);
    if (gradients.defined()) ops.zero_(gradients);
  }
  /// measure(gradients) for those that are complete and leave: norms of their tiles.
  template <class Measure>
  void measure_complete_gradients(const Measure& measure) {
    if (source_ == nullptr) return;
    const T gradients = source_->complete_gradients(index_);
    if (gradients.defined()) source_->keep_norms(index_, measure(gradients));
  }

 private:
  BlockSource<T>* source_;
  std::size_t index_;
  const Block<T>& block_;
};

}  // namespace neap::step
