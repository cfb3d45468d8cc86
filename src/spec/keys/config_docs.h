// Generates docs/configuration.md and docs/configuration/ from the table that reads configurations.
#pragma once

#include <string>
#include <vector>

namespace neap::spec {

struct ReferencePage {
  std::string file;  ///< path below docs/
  std::string text;
};
/// The first page is the overview, which links to the others.
[[nodiscard]] std::vector<ReferencePage> configuration_reference();

}  // namespace neap::spec
