// Tags as a list.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace neap::arena {

inline std::vector<std::string> tags(std::initializer_list<const char*> names) {
  return {names.begin(), names.end()};
}

}  // namespace neap::arena
