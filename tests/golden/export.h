// Folders that a test writes for a program beside it, which opens them with another library.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace neap::testing {

/// Where to; null: nothing is asked for.
inline const char* export_folder() {
  return std::getenv("NEAP_EXPORT");
}
/// The cases of the tests that write them.
inline std::vector<std::string> to_export(const std::vector<std::string>& cases) {
  return export_folder() != nullptr ? cases : std::vector<std::string>();
}

}  // namespace neap::testing
