// The groups of ranks that the models of a job talk in: of each axis of a model's mesh the ranks that differ along it only,
// and the copies of a part of the model, all or those that slice it together.
//
// Where a generation divides a model otherwise, the ranks that do so there are a group, too. Made once, by every rank
// together, in the order of spec/rank_groups.h; models share those with the same ranks. A group of one does nothing, and one
// of all ranks is the communicator that it is made from: neither takes memory.
//
// Threads   as communicators.   Failure   Error, where the ranks cannot be connected.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "spec/job.h"
#include "spec/mesh.h"
#include "spec/rank_groups.h"

namespace neap::parallel {

/// Communicators that groups share.
class MadeGroups {
 public:
  /// `world` outlives them.
  MadeGroups(Communicator& world, const std::vector<spec::Mesh>& models,
             const spec::Mesh& generation);
  MadeGroups(const MadeGroups&) = delete;
  MadeGroups& operator=(const MadeGroups&) = delete;
  [[nodiscard]] Communicator& world() const { return world_; }
  /// Of these meshes.
  [[nodiscard]] Communicator& along(const spec::Mesh& mesh, spec::Axis axis) const;

 private:
  Communicator& world_;
  std::unique_ptr<Communicator> alone_;
  std::map<spec::RankGroup, std::unique_ptr<Communicator>> made_;
};

/// Those of one model.
class Groups {
 public:
  /// `world` has the mesh's ranks, and outlives the groups. `generation`: how the same ranks are arranged where they
  /// generate.
  Groups(Communicator& world, const spec::Mesh& mesh, const spec::Mesh& generation)
      : Groups(std::make_shared<MadeGroups>(world, std::vector<spec::Mesh>{mesh}, generation), mesh,
               generation) {}
  Groups(Communicator& world, const spec::Mesh& mesh) : Groups(world, mesh, mesh) {}
  /// Of meshes whose groups are made.
  Groups(std::shared_ptr<const MadeGroups> made, const spec::Mesh& mesh,
         const spec::Mesh& generation);

  [[nodiscard]] Communicator& world() const { return made_->world(); }
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
  std::shared_ptr<const MadeGroups> made_;
  std::array<Communicator*, spec::kGroups> groups_{};
  Communicator* generating_ = nullptr;
};

/// Those of each model of a job.
class JobGroups {
 public:
  /// `world` has the job's ranks, and outlives the groups.
  JobGroups(Communicator& world, const spec::Job& job);
  /// Of the job's main model, whose ranks share its batches.
  [[nodiscard]] const Groups& main() const { return of_models_.at(main_); }
  [[nodiscard]] const Groups& of(spec::ModelId model) const { return of_models_.at(model); }

 private:
  spec::ModelId main_;
  std::map<spec::ModelId, Groups> of_models_;
};

}  // namespace neap::parallel
