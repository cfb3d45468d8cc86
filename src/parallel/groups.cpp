#include "parallel/groups.h"

#include "base/format.h"
#include "base/status.h"

namespace neap::parallel {

Groups::Groups(Communicator& world, const spec::Mesh& mesh) : world_(world) {
  if (mesh.ranks() != world.size())
    throw Error(
        ErrorCode::kInvalidArgument,
        format("A mesh of {} ranks does not go with {} processes", mesh.ranks(), world.size()));
  static_assert(static_cast<std::size_t>(spec::Axis::kCopies) == spec::kAxes);
  for (std::size_t i = 0; i < kGroups; ++i) {
    const auto axis = static_cast<spec::Axis>(i);
    if (axis == spec::Axis::kCopies) {
      const bool data_only = mesh.size(spec::Axis::kContext) == 1;
      if (data_only || mesh.size(spec::Axis::kData) == 1) {
        groups_[i] = data_only ? &data() : &context();
        continue;
      }
    }
    if (mesh.size(axis) == world.size()) {
      groups_[i] = &world;
      continue;
    }
    made_[i] = mesh.size(axis) == 1
                   ? make_single()
                   : world.split(static_cast<int>(mesh.line(world.rank(), axis).front()));
    groups_[i] = made_[i].get();
  }
}

}  // namespace neap::parallel
