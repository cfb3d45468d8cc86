// How passes get a block: from memory that holds the whole model, or from a source that has a few
// blocks on the device at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "step/block_window.h"
#include "step/weights.h"

namespace neap::step {

/// Memory on the device for a few blocks of a model that rests elsewhere.
///
/// Threads   one at a time.   Failure   Error.
class BlockSlots {
 public:
  virtual ~BlockSlots() = default;
  /// The passes that follow, so that blocks come before they are used.
  virtual void expect(Sweep sweep, std::int64_t passes) = 0;
  /// The slot that holds the block for what the device is given next, until release(block).
  [[nodiscard]] virtual std::size_t use(std::size_t block) = 0;
  virtual void release(std::size_t block) noexcept = 0;
};

/// The same for passes, which take blocks bound to their slot's memory.
template <class T>
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual void expect(Sweep sweep, std::int64_t passes) = 0;
  [[nodiscard]] virtual const Block<T>& use(std::size_t block) = 0;
  virtual void release(std::size_t block) noexcept = 0;
};

template <class T>
void expect_passes(const Weights<T>& w, Sweep sweep, std::int64_t passes) {
  if (w.source != nullptr) w.source->expect(sweep, passes);
}

/// A block of a model while its weights are on the device.
template <class T>
class UsedBlock {
 public:
  UsedBlock(const Weights<T>& w, std::size_t i)
      : source_(w.source), index_(i), block_(source_ ? source_->use(i) : w.blocks[i]) {}
  UsedBlock(const UsedBlock&) = delete;
  UsedBlock& operator=(const UsedBlock&) = delete;
  ~UsedBlock() {
    if (source_ != nullptr) source_->release(index_);
  }
  [[nodiscard]] const Block<T>& operator*() const { return block_; }

 private:
  BlockSource<T>* source_;
  std::size_t index_;
  const Block<T>& block_;
};

}  // namespace neap::step
