// The page docs/configuration.md, from the table that reads configurations.
#pragma once

#include <string>

namespace neap::plan {

[[nodiscard]] std::string configuration_reference();

}  // namespace neap::plan
