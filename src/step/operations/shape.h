// Sizes of tensors, for code that does not use a tensor library.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>

#include "spec/types/dtype.h"

namespace neap::step {

using spec::Dtype;
using spec::element_bytes;

/// The type in which norms, softmax and log-probabilities are computed.
[[nodiscard]] constexpr Dtype wide(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
}

[[nodiscard]] constexpr std::int64_t div_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Sizes of up to 5 dimensions.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) {
    assert(sizes.size() <= sizes_.size());
    for (const std::int64_t size : sizes) sizes_[rank_++] = size;
  }
  [[nodiscard]] std::size_t rank() const { return rank_; }
  /// Dimension `i`; negative numbers count from the end.
  [[nodiscard]] std::int64_t operator[](std::int64_t i) const { return sizes_[index(i)]; }
  void set(std::int64_t i, std::int64_t size) { sizes_[index(i)] = size; }
  [[nodiscard]] std::int64_t elements() const {
    std::int64_t n = 1;
    for (std::size_t i = 0; i < rank_; ++i) n *= sizes_[i];
    return n;
  }
  [[nodiscard]] const std::int64_t* begin() const { return sizes_.data(); }
  [[nodiscard]] const std::int64_t* end() const { return sizes_.data() + rank_; }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  [[nodiscard]] std::size_t index(std::int64_t i) const {
    return static_cast<std::size_t>(i < 0 ? i + static_cast<std::int64_t>(rank_) : i);
  }
  std::array<std::int64_t, 5> sizes_{};
  std::size_t rank_ = 0;
};

}  // namespace neap::step
