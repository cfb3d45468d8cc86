// The pages docs/configuration.md and docs/configuration/, from the table that reads configurations.
#pragma once

#include <string>
#include <vector>

namespace neap::spec {

struct ReferencePage {
  std::string file;  ///< below docs/
  std::string text;
};
/// The page with the links to the others first.
[[nodiscard]] std::vector<ReferencePage> configuration_reference();

}  // namespace neap::spec
