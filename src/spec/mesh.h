// How the ranks of a job are arranged: along named axes, of which each divides something else.
//
//   pipe     layers
//   data     rows of a batch, and by ZeRO what is kept for training
//   context  tokens of a sequence (spec/context_parallel.h); where responses are generated, each rank's rows
//   tensor   heads, the MLP's columns and the vocabulary (spec/tensor_parallel.h)
// Rows of a batch are dealt to the ranks along data. Those along context have the same rows and divide each sequence;
// a generation computes one token of a sequence at a time, so there the rows are dealt on to the ranks along context.
//
// Neighbours along the last axis have neighbouring numbers, so that they are on one machine: those of tensor
// talk most. Of the ranks that have the same part of the model, neighbours may slice it in groups of their own: each
// such group has all of the part, and the groups are replicas (spec/data_parallel.h).
//
// Threads   values.   Failure   none.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace neap::spec {

/// In place of an axis: kCopies, data and context together, along which ranks have the same part of a model and
/// add up its gradients; kShards, those of these that slice it together, and kReplicas, those that have the same slices;
/// kSelf, this rank alone.
enum class Axis : std::uint8_t {
  kPipe,
  kData,
  kContext,
  kTensor,
  kCopies,
  kShards,
  kReplicas,
  kSelf
};
constexpr std::size_t kAxes = 4;
/// Ranks talk to those along an axis, to copies, or to some of these.
constexpr std::size_t kGroups = kAxes + 3;
static_assert(static_cast<std::size_t>(Axis::kReplicas) + 1 == kGroups);

/// Whom collectives in the name of an axis are among: those of "data" add up gradients, and are among all copies.
[[nodiscard]] constexpr Axis group_of(Axis axis) {
  return axis == Axis::kData ? Axis::kCopies : axis;
}

/// The ranks along an axis: `size` of them, `stride` apart. Axes, of one mesh or of two over the same ranks, that have the
/// same one have the same lines.
struct AxisSpan {
  std::int64_t stride = 1, size = 1;
  /// Where a rank is among them, and the first one of its line.
  [[nodiscard]] std::int64_t coordinate(std::int64_t rank) const {
    return size == 1 ? 0 : rank / stride % size;
  }
  [[nodiscard]] std::int64_t first_of(std::int64_t rank) const {
    return rank - coordinate(rank) * stride;
  }
  friend auto operator<=>(const AxisSpan&, const AxisSpan&) = default;
};

/// Rows that each of several ranks has of `all`; the last ones' may be padding.
[[nodiscard]] constexpr std::int64_t rows_of_each(std::int64_t all, std::int64_t ranks) {
  return (all + ranks - 1) / ranks;
}

class Mesh {
 public:
  /// Sizes that are not given are 1.
  Mesh() { sizes_.fill(1); }
  Mesh& set(Axis axis, std::int64_t size) {
    sizes_.at(place_of(axis)) = size;
    return *this;
  }

  /// So many neighbouring copies slice a part together, a divisor of theirs; 0: all of them.
  Mesh& set_shards(std::int64_t size) {
    shards_ = size;
    return *this;
  }

  [[nodiscard]] std::int64_t size(Axis axis) const {
    if (axis == Axis::kSelf) return 1;
    if (axis < Axis::kCopies) return sizes_[place_of(axis)];
    const std::int64_t copies = sizes_[place_of(Axis::kData)] * sizes_[place_of(Axis::kContext)];
    const std::int64_t shards = shards_ == 0 ? copies : shards_;
    if (axis == Axis::kCopies) return copies;
    return axis == Axis::kShards ? shards : copies / shards;
  }
  [[nodiscard]] std::int64_t ranks() const {
    std::int64_t n = 1;
    for (const std::int64_t size : sizes_) n *= size;
    return n;
  }
  [[nodiscard]] AxisSpan span(Axis axis) const {
    return {axis == Axis::kSelf ? 0 : stride(axis), size(axis)};
  }
  /// Where a rank is along an axis.
  [[nodiscard]] std::int64_t coordinate(std::int64_t rank, Axis axis) const {
    return span(axis).coordinate(rank);
  }
  /// The ranks that differ from `rank` along this axis only, with it, in the order of their coordinates.
  [[nodiscard]] std::vector<std::int64_t> line(std::int64_t rank, Axis axis) const {
    std::vector<std::int64_t> out;
    const AxisSpan ranks = span(axis);
    for (std::int64_t i = 0; i < ranks.size; ++i)
      out.push_back(ranks.first_of(rank) + i * ranks.stride);
    return out;
  }

 private:
  static constexpr std::size_t place_of(Axis axis) { return static_cast<std::size_t>(axis); }
  /// From a rank to its neighbour along the axis.
  [[nodiscard]] std::int64_t stride(Axis axis) const {
    if (axis == Axis::kReplicas) return stride(Axis::kShards) * size(Axis::kShards);
    // Copies are neighbours.
    const std::size_t last = place_of(axis < Axis::kCopies ? axis : Axis::kContext);
    std::int64_t n = 1;
    for (std::size_t i = last + 1; i < kAxes; ++i) n *= sizes_[i];
    return n;
  }

  std::array<std::int64_t, kAxes> sizes_{};
  std::int64_t shards_ = 0;
};

}  // namespace neap::spec
