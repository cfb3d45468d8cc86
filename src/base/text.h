// Text from outside that may not be UTF-8, in messages.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

/// kCorrupt, with the command that converts it, where `text` begins with the byte-order mark of
/// UTF-16; `where` is its file.
[[nodiscard]] Status check_not_utf16(std::string_view text, std::string_view where);

/// `text` on one line and as UTF-8: control characters and bytes of no character as in C ("\n",
/// "\x1b").
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace neap
