// Communicators for the groups of ranks of a job's models: one for each axis of a model's mesh, one
// for its data-parallel replicas, and one for its ZeRO shard group. A rollout with different tensor
// parallelism has a group of its own.
//
// Every rank creates them together, in the order of spec/ranks/rank_groups.h. Models share a group if its
// ranks are the same. A group of one rank does nothing, and a group of all ranks is the world
// communicator; neither takes memory.
//
// Threads   as communicators.
// Failure   Error if ranks cannot be connected.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "spec/job/job.h"
#include "spec/ranks/rank_groups.h"
#include "spec/types/mesh.h"

namespace neap::parallel {

/// The communicators that groups share.
class MadeGroups {
 public:
  /// `world` must outlive them.
  MadeGroups(Communicator& world, const std::vector<spec::Mesh>& models,
             const spec::Mesh& generation);
  MadeGroups(const MadeGroups&) = delete;
  MadeGroups& operator=(const MadeGroups&) = delete;
  [[nodiscard]] Communicator& world() const { return world_; }
  /// The communicator along an axis of one of these meshes.
  [[nodiscard]] Communicator& along(const spec::Mesh& mesh, spec::Axis axis) const;

 private:
  Communicator& world_;
  std::unique_ptr<Communicator> alone_;
  std::map<spec::RankGroup, std::unique_ptr<Communicator>> made_;
};

/// The groups of one model.
class Groups {
 public:
  /// `world` has the mesh's ranks and must outlive the groups. `generation` is the mesh of the same
  /// ranks during rollouts.
  Groups(Communicator& world, const spec::Mesh& mesh, const spec::Mesh& generation)
      : Groups(std::make_shared<MadeGroups>(world, std::vector<spec::Mesh>{mesh}, generation), mesh,
               generation) {}
  Groups(Communicator& world, const spec::Mesh& mesh) : Groups(world, mesh, mesh) {}
  /// For a mesh whose communicators already exist.
  Groups(std::shared_ptr<const MadeGroups> made, const spec::Mesh& mesh,
         const spec::Mesh& generation);

  [[nodiscard]] Communicator& world() const { return made_->world(); }
  /// Ranks that share the batch (data parallel).
  [[nodiscard]] Communicator& data() const { return along(spec::Axis::kData); }
  /// Ranks that share the tokens of each sequence (context parallel).
  [[nodiscard]] Communicator& context() const { return along(spec::Axis::kContext); }
  /// Ranks with the same shard of the model, along data and context. They all-reduce its gradients.
  [[nodiscard]] Communicator& copies() const { return along(spec::Axis::kCopies); }
  /// The ZeRO shard group: all of copies(), or some of them.
  [[nodiscard]] Communicator& shards() const { return along(spec::Axis::kShards); }
  /// Ranks with the same ZeRO shards, in different shard groups (hybrid sharding).
  [[nodiscard]] Communicator& replicas() const { return along(spec::Axis::kReplicas); }
  /// The tensor-parallel group.
  [[nodiscard]] Communicator& tensor() const { return along(spec::Axis::kTensor); }
  /// The tensor-parallel group of rollouts.
  [[nodiscard]] Communicator& generating() const { return *generating_; }
  [[nodiscard]] Communicator& along(spec::Axis axis) const {
    return *groups_.at(static_cast<std::size_t>(axis));
  }

 private:
  std::shared_ptr<const MadeGroups> made_;
  std::array<Communicator*, spec::kGroups> groups_{};
  Communicator* generating_ = nullptr;
};

/// The groups of every model of a job.
class JobGroups {
 public:
  /// `world` has the job's ranks and must outlive the groups.
  JobGroups(Communicator& world, const spec::Job& job);
  /// The groups of the job's main model, whose ranks share its batches.
  [[nodiscard]] const Groups& main() const { return of_models_.at(main_); }
  [[nodiscard]] const Groups& of(spec::ModelId model) const { return of_models_.at(model); }

 private:
  spec::ModelId main_;
  std::map<spec::ModelId, Groups> of_models_;
};

}  // namespace neap::parallel
