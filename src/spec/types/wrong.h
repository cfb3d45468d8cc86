// The error of an invalid configuration value.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace neap::spec {

[[nodiscard]] inline Status wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace neap::spec
