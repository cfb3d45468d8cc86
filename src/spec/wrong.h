// A value that a configuration cannot have.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace neap::spec {

[[nodiscard]] inline Status wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace neap::spec
