// The name of a tag: what it may hold, and how a table shows it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

/// kInvalidArgument unless `tag` is UTF-8 text, which JSON and traces need, and not empty.
[[nodiscard]] Status check_tag(std::string_view tag);

/// `text` on one line: control characters as in C ("\n", "\x1b").
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace neap
