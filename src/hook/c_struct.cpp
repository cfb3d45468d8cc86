#include "hook/c_struct.h"

#include "base/tag.h"

namespace neap::hook {

Status require_tag(const char* tag, std::string_view missing) {
  NEAP_TRY(require(tag != nullptr && *tag != '\0', missing));
  return check_tag(tag);
}

Result<arena::Policy> policy_from(neap_policy policy) {
  if (policy < NEAP_DISCARD || policy > NEAP_ZERO) {
    return Status(ErrorCode::kInvalidArgument, format("{} is not a neap_policy value", policy));
  }
  return static_cast<arena::Policy>(policy);
}

Result<std::vector<std::string>> tags_from(const char* const* tags, std::size_t count) {
  std::vector<std::string> list;
  NEAP_TRY(require(tags != nullptr || count == 0, "The list of tags is null"));
  for (std::size_t i = 0; i < count; ++i) {
    NEAP_TRY(require(tags[i] != nullptr, format("Tag {} of the list is null", i)));
    list.emplace_back(tags[i]);
  }
  return list;
}

neap_region to_c(const arena::RegionInfo& region, int device) {
  return {sizeof(neap_region),
          intern_tag(region.tag),
          pointer(region.address),
          region.requested.count(),
          region.size.count(),
          region.mapped.count(),
          region.generation,
          static_cast<neap_state>(region.state),
          static_cast<neap_policy>(region.policy),
          device,
          region.kept ? 1 : 0};
}

neap_move to_c(const arena::MoveReport& report) {
  return {sizeof(neap_move), report.bytes.count(), report.copied.count(), report.regions,
          report.seconds};
}

Result<Place> region_at(const void* address) {
  NEAP_TRY(Runtime::get().usable());
  NEAP_TRY_ASSIGN(Place place, Runtime::get().find(address));
  if (place.region.address != reinterpret_cast<device::Address>(address)) {
    return Status(ErrorCode::kInvalidArgument,
                  format("Address {} lies inside a region of tag \"{}\" that begins at {}", address,
                         place.region.tag, pointer(place.region.address)));
  }
  return place;
}

}  // namespace neap::hook
