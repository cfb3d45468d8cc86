// The arrangement of a job's ranks along named axes. Each axis shards something else:
//
//   pipe     layers (pipeline stages)
//   data     rows of a batch, and with ZeRO the states of training
//   context  tokens of a sequence (spec/ranks/context_parallel.h); in rollouts, rows
//   tensor   heads, the MLP's columns and the vocabulary (spec/model/tensor_parallel.h)
//
// Rows of a batch are assigned to the ranks along data. Ranks along context have the same rows and
// share each sequence. A decoding step has one token per sequence, so in rollouts the ranks along
// context get different rows.
//
// Neighbours along the last axis have adjacent numbers, so they are on the same machine: tensor
// parallelism communicates most. Ranks with the same shard of the model may form several ZeRO shard
// groups of neighbours, which are replicas of each other (spec/types/data_parallel.h).
//
// Threads   values.
// Failure   none.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace neap::spec {

/// Combinations that can be used like an axis. kCopies is data and context together. Ranks along it
/// have the same shard of the model, and all-reduce its gradients. The axis kShards is a ZeRO shard
/// group within kCopies. The axis kReplicas has the ranks with the same ZeRO shards. The axis kSelf
/// is this rank alone.
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
/// Communication runs along an axis, or within copies, shards or replicas.
constexpr std::size_t kGroups = kAxes + 3;
static_assert(static_cast<std::size_t>(Axis::kReplicas) + 1 == kGroups);

/// The group of a collective that is named after an axis. Gradients are summed over all copies, so
/// "data" means kCopies.
[[nodiscard]] constexpr Axis group_of(Axis axis) {
  return axis == Axis::kData ? Axis::kCopies : axis;
}

/// The ranks along an axis: `size` ranks, `stride` apart. Axes with equal spans, even of two meshes
/// over the same ranks, consist of the same groups.
struct AxisSpan {
  std::int64_t stride = 1, size = 1;
  /// A rank's position in its group, and the first rank of its group.
  [[nodiscard]] std::int64_t coordinate(std::int64_t rank) const {
    return size == 1 ? 0 : rank / stride % size;
  }
  [[nodiscard]] std::int64_t first_of(std::int64_t rank) const {
    return rank - coordinate(rank) * stride;
  }
  friend auto operator<=>(const AxisSpan&, const AxisSpan&) = default;
};

/// Rows per rank, if `all` rows are shared evenly. The last ranks may have padding.
[[nodiscard]] constexpr std::int64_t rows_of_each(std::int64_t all, std::int64_t ranks) {
  return (all + ranks - 1) / ranks;
}

class Mesh {
 public:
  /// All sizes are 1 until they are set.
  Mesh() { sizes_.fill(1); }
  Mesh& set(Axis axis, std::int64_t size) {
    sizes_.at(place_of(axis)) = size;
    return *this;
  }

  /// The number of neighbouring copies in a ZeRO shard group, a divisor of all copies; 0: all of
  /// them.
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
  /// The position of a rank along an axis.
  [[nodiscard]] std::int64_t coordinate(std::int64_t rank, Axis axis) const {
    return span(axis).coordinate(rank);
  }
  /// The group of `rank` along this axis, in the order of positions.
  [[nodiscard]] std::vector<std::int64_t> line(std::int64_t rank, Axis axis) const {
    std::vector<std::int64_t> out;
    const AxisSpan ranks = span(axis);
    for (std::int64_t i = 0; i < ranks.size; ++i)
      out.push_back(ranks.first_of(rank) + i * ranks.stride);
    return out;
  }

 private:
  static constexpr std::size_t place_of(Axis axis) { return static_cast<std::size_t>(axis); }
  /// The distance from a rank to its neighbour along the axis.
  [[nodiscard]] std::int64_t stride(Axis axis) const {
    if (axis == Axis::kReplicas) return stride(Axis::kShards) * size(Axis::kShards);
    // Data and context are adjacent axes.
    const std::size_t last = place_of(axis < Axis::kCopies ? axis : Axis::kContext);
    std::int64_t n = 1;
    for (std::size_t i = last + 1; i < kAxes; ++i) n *= sizes_[i];
    return n;
  }

  std::array<std::int64_t, kAxes> sizes_{};
  std::int64_t shards_ = 0;
};

}  // namespace neap::spec
