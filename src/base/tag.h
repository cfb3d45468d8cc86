// The name of a tag.
#pragma once

#include <string_view>

#include "base/status.h"

namespace neap {

/// kInvalidArgument unless `tag` is UTF-8 text, which JSON and traces need, and not empty.
[[nodiscard]] Status check_tag(std::string_view tag);

}  // namespace neap
