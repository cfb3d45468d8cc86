// The name of a tag.
#pragma once

#include <string_view>

#include "base/status.h"

namespace neap {

/// kInvalidArgument if `tag` is empty or not UTF-8, which JSON and traces need.
[[nodiscard]] Status check_tag(std::string_view tag);

}  // namespace neap
