#include "parallel/groups.h"

#include "base/format.h"
#include "base/status.h"

namespace neap::parallel {

Groups::Groups(Communicator& world, const spec::Mesh& mesh, const spec::Mesh& generation)
    : world_(world) {
  if (mesh.ranks() != world.size())
    throw Error(
        ErrorCode::kInvalidArgument,
        format("A mesh of {} ranks does not go with {} processes", mesh.ranks(), world.size()));
  for (std::size_t i = 0; i < spec::kGroups; ++i) {
    const auto axis = static_cast<spec::Axis>(i);
    if (mesh.has_own_group(axis)) {
      made_[i] = world.split(static_cast<int>(mesh.line(world.rank(), axis).front()));
    } else if (mesh.distinct(axis) != axis) {
      groups_[i] = &along(mesh.distinct(axis));  // made before
      continue;
    } else if (mesh.size(axis) == world.size()) {
      groups_[i] = &world;
      continue;
    } else {
      made_[i] = make_single();
    }
    groups_[i] = made_[i].get();
  }
  constexpr spec::Axis kTensor = spec::Axis::kTensor;
  if (generation.size(kTensor) == mesh.size(kTensor)) {
    generating_ = &tensor();
  } else if (generation.has_own_group(kTensor)) {
    made_for_generation_ =
        world.split(static_cast<int>(generation.line(world.rank(), kTensor).front()));
    generating_ = made_for_generation_.get();
  } else if (generation.size(kTensor) == world.size()) {
    generating_ = &world;
  } else {
    made_for_generation_ = make_single();
    generating_ = made_for_generation_.get();
  }
}

}  // namespace neap::parallel
