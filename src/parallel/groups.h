// The groups of ranks that a mesh has: of each axis the ranks that differ along it only, and the copies of a part
// of the model, all or those that slice it together.
//
// Where a generation divides the model otherwise, the ranks that do so there are a group, too.
// Made once, in the order of the axes, by every rank together. A group of one does nothing, and one of all
// ranks is the communicator that it is made from: neither takes memory. Copies along one axis are that axis.
//
// Threads   as communicators.   Failure   Error, where the ranks cannot be connected.
#pragma once

#include <array>
#include <memory>

#include "parallel/communicator.h"
#include "spec/mesh.h"

namespace neap::parallel {

class Groups {
 public:
  /// `world` has the mesh's ranks, and outlives the groups. `generation`: how the same ranks are arranged where they
  /// generate.
  Groups(Communicator& world, const spec::Mesh& mesh, const spec::Mesh& generation);
  Groups(Communicator& world, const spec::Mesh& mesh) : Groups(world, mesh, mesh) {}
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  [[nodiscard]] Communicator& world() const { return world_; }
  /// Ranks that divide the batch.
  [[nodiscard]] Communicator& data() const { return along(spec::Axis::kData); }
  /// Ranks that divide the tokens of each sequence.
  [[nodiscard]] Communicator& context() const { return along(spec::Axis::kContext); }
  /// Ranks that have the same part of the model: along data and context. They add up its gradients.
  [[nodiscard]] Communicator& copies() const { return along(spec::Axis::kCopies); }
  /// Of these the ranks that slice it together: all of them, or some.
  [[nodiscard]] Communicator& shards() const { return along(spec::Axis::kShards); }
  /// And those that have the same slices.
  [[nodiscard]] Communicator& replicas() const { return along(spec::Axis::kReplicas); }
  /// Ranks that divide the model.
  [[nodiscard]] Communicator& tensor() const { return along(spec::Axis::kTensor); }
  /// Those that divide it where it generates.
  [[nodiscard]] Communicator& generating() const { return *generating_; }
  [[nodiscard]] Communicator& along(spec::Axis axis) const {
    return *groups_.at(static_cast<std::size_t>(axis));
  }

 private:
  Communicator& world_;
  std::array<std::unique_ptr<Communicator>, spec::kGroups> made_;
  std::array<Communicator*, spec::kGroups> groups_{};
  std::unique_ptr<Communicator> made_for_generation_;
  Communicator* generating_ = nullptr;
};

}  // namespace neap::parallel
