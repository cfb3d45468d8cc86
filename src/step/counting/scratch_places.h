// Places of a decoding step's tensors in one region of memory, so that a graph of the step finds them at the same
// addresses again.
//
// Model     A tensor takes the lowest free place. A run and its plan use this class, so the plan knows the region's size.
// Threads   one.
// Cost      linear in the number of live tensors, a few dozen.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include "step/counting/counted_tensor.h"

namespace neap::step {

/// Steps of decoding with equal keys run the same kernels with the same arguments.
struct GraphKey {
  std::int64_t rows = 0;
  std::int64_t key_limit = 0;
  auto operator<=>(const GraphKey&) const = default;
};

class ScratchPlaces {
 public:
  /// The unit of places and sizes, as in libtorch's allocator.
  static constexpr std::uint64_t kAlignment = 512;

  /// The offset of a place for `bytes` > 0.
  [[nodiscard]] std::uint64_t take(std::uint64_t bytes);
  /// Frees a place. False if no tensor had it.
  bool give_back(std::uint64_t offset);
  /// The end of the last place so far: the bytes that the region needs.
  [[nodiscard]] std::uint64_t extent() const { return extent_; }
  /// Number of places in use.
  [[nodiscard]] std::size_t live() const { return used_.size(); }
  /// Frees all places.
  void clear() { used_.clear(); }

 private:
  std::map<std::uint64_t, std::uint64_t> used_;  // offset -> end
  std::uint64_t extent_ = 0;
};

/// The same for counted tensors.
class ScratchSink final : public MemorySink {
 public:
  [[nodiscard]] std::uint64_t allocate(std::int64_t bytes) override {
    return places_.take(static_cast<std::uint64_t>(bytes));
  }
  void release(std::uint64_t address) override { places_.give_back(address); }
  [[nodiscard]] std::uint64_t extent() const { return places_.extent(); }

 private:
  ScratchPlaces places_;
};

}  // namespace neap::step
