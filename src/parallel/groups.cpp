#include "parallel/groups.h"

#include <utility>

#include "base/format.h"
#include "base/status.h"

namespace neap::parallel {

MadeGroups::MadeGroups(Communicator& world, const std::vector<spec::Mesh>& models,
                       const spec::Mesh& generation)
    : world_(world), alone_(make_single()) {
  for (const spec::Mesh& mesh : models) {
    if (mesh.ranks() != world.size())
      throw Error(
          ErrorCode::kInvalidArgument,
          format("A mesh of {} ranks does not go with {} processes", mesh.ranks(), world.size()));
  }
  for (const spec::RankGroup& group : spec::groups_of(models, generation))
    made_.emplace(group, world.split(static_cast<int>(group.span.first_of(world.rank()))));
}

Communicator& MadeGroups::along(const spec::Mesh& mesh, spec::Axis axis) const {
  const spec::RankGroup group = spec::group_along(mesh, axis);
  if (spec::is_made(group, world_.size())) return *made_.at(group);
  return group.span.size == 1 ? *alone_ : world_;
}

Groups::Groups(std::shared_ptr<const MadeGroups> made, const spec::Mesh& mesh,
               const spec::Mesh& generation)
    : made_(std::move(made)), generating_(&made_->along(generation, spec::Axis::kTensor)) {
  for (std::size_t i = 0; i < spec::kGroups; ++i)
    groups_[i] = &made_->along(mesh, static_cast<spec::Axis>(i));
}

JobGroups::JobGroups(Communicator& world, const spec::Job& job) : main_(job.main_model()) {
  const auto made =
      std::make_shared<const MadeGroups>(world, job.model_meshes(), job.generation_mesh());
  for (const spec::ModelId model : job.models())
    of_models_.emplace(model, Groups(made, job.mesh(model),
                                     model == main_ ? job.generation_mesh() : job.mesh(model)));
}

}  // namespace neap::parallel
