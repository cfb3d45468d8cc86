// The page docs/configuration.md, from the table that reads configurations.
#pragma once

#include <string>

namespace neap::spec {

[[nodiscard]] std::string configuration_reference();

}  // namespace neap::spec
