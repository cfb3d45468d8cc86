// How the ranks of a job are arranged: along named axes, of which each divides something else.
//
//   pipe     layers
//   data     rows of a batch, and by ZeRO what is kept for training
//   context  tokens of a sequence (spec/context_parallel.h)
//   tensor   heads, the MLP's columns and the vocabulary (spec/tensor_parallel.h)
// Neighbours along the last axis have neighbouring numbers, so that they are on one machine: those of tensor
// talk most.
//
// Threads   values.   Failure   none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace neap::spec {

/// In place of an axis: kCopies, data and context together, along which ranks have the same part of a model and
/// add up its gradients; kSelf, this rank alone.
enum class Axis : std::uint8_t { kPipe, kData, kContext, kTensor, kCopies, kSelf };
constexpr std::size_t kAxes = 4;

class Mesh {
 public:
  /// Sizes that are not given are 1.
  Mesh() { sizes_.fill(1); }
  Mesh& set(Axis axis, std::int64_t size) {
    sizes_.at(place_of(axis)) = size;
    return *this;
  }

  [[nodiscard]] std::int64_t size(Axis axis) const {
    if (axis == Axis::kSelf) return 1;
    if (axis == Axis::kCopies) return size(Axis::kData) * size(Axis::kContext);
    return sizes_[place_of(axis)];
  }
  [[nodiscard]] std::int64_t ranks() const {
    std::int64_t n = 1;
    for (const std::int64_t size : sizes_) n *= size;
    return n;
  }
  /// Where a rank is along an axis.
  [[nodiscard]] std::int64_t coordinate(std::int64_t rank, Axis axis) const {
    return axis == Axis::kSelf ? 0 : rank / stride(axis) % size(axis);
  }
  /// The ranks that differ from `rank` along this axis only, with it, in the order of their coordinates.
  [[nodiscard]] std::vector<std::int64_t> line(std::int64_t rank, Axis axis) const {
    std::vector<std::int64_t> out;
    const std::int64_t step = axis == Axis::kSelf ? 0 : stride(axis);
    const std::int64_t first = rank - coordinate(rank, axis) * step;
    for (std::int64_t i = 0; i < size(axis); ++i) out.push_back(first + i * step);
    return out;
  }

 private:
  static constexpr std::size_t place_of(Axis axis) { return static_cast<std::size_t>(axis); }
  /// From a rank to its neighbour along the axis.
  [[nodiscard]] std::int64_t stride(Axis axis) const {
    // The axes of copies are neighbours.
    const std::size_t last = place_of(axis == Axis::kCopies ? Axis::kContext : axis);
    std::int64_t n = 1;
    for (std::size_t i = last + 1; i < kAxes; ++i) n *= sizes_[i];
    return n;
  }

  std::array<std::int64_t, kAxes> sizes_{};
};

}  // namespace neap::spec
