#include "trace/event.h"

namespace neap::trace {

std::uint32_t NameTable::intern(std::string_view name) {
  if (name.empty()) return 0;
  if (const auto known = ids_.find(name); known != ids_.end()) return known->second;
  const auto id = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  ids_.emplace(names_.back(), id);
  return id;
}

std::uint32_t NameTable::find(std::string_view name) const {
  const auto known = ids_.find(name);
  return known != ids_.end() ? known->second : 0;
}

}  // namespace neap::trace
