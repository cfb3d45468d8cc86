// Reads and writes the structs of the C interface. Callers may be older or newer than this library.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "base/format.h"
#include "hook/runtime.h"
#include "neap/neap.h"

namespace neap::hook {

/// Overwrites the defaults in `known` with the fields that the caller's struct has.
template <class Struct>
Status read_struct(const Struct* given, Struct& known, std::string_view name) {
  if (given == nullptr) return {};
  if (given->struct_size < sizeof(std::size_t)) {
    return {ErrorCode::kInvalidArgument, format("{}.struct_size is not set", name)};
  }
  const std::size_t size = std::min(given->struct_size, sizeof(Struct));
  std::memcpy(static_cast<void*>(&known), given, size);
  known.struct_size = sizeof(Struct);
  return {};
}

/// Fills the fields that the caller's struct has. Null is ignored.
template <class Struct>
void write_struct(Struct* out, const Struct& value) {
  if (out == nullptr) return;
  const std::size_t size = out->struct_size;
  std::memcpy(static_cast<void*>(out), &value, std::min(size, sizeof(Struct)));
  out->struct_size = size;
}
template <class Struct>
Status check_struct(const Struct* out, std::string_view name) {
  if (out == nullptr) return {};
  if (out->struct_size >= sizeof(std::size_t)) return {};
  return {ErrorCode::kInvalidArgument, format("{}.struct_size is not set", name)};
}

[[nodiscard]] inline Status require(bool condition, std::string_view what) {
  if (condition) return {};
  return {ErrorCode::kInvalidArgument, std::string(what)};
}
/// Fails with `missing` for a null tag; else checks the tag.
[[nodiscard]] Status require_tag(const char* tag, std::string_view missing);
[[nodiscard]] Result<arena::Policy> policy_from(neap_policy policy);
[[nodiscard]] Result<std::vector<std::string>> tags_from(const char* const* tags,
                                                         std::size_t count);
[[nodiscard]] neap_region to_c(const arena::RegionInfo& region, int device);
[[nodiscard]] neap_move to_c(const arena::MoveReport& report);
[[nodiscard]] inline void* pointer(device::Address at) {
  return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
}
/// The region that begins at `address`.
[[nodiscard]] Result<Place> region_at(const void* address);

}  // namespace neap::hook
