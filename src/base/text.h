// Text from outside: whether it is UTF-8, and how a message shows it if it is not.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

[[nodiscard]] bool is_utf8(std::string_view text);

/// kCorrupt, with the command that converts it, where `text` begins with the byte-order mark of
/// UTF-16; `where` is its file.
[[nodiscard]] Status check_not_utf16(std::string_view text, std::string_view where);

/// `text` on one line and as UTF-8: control characters and bytes of no character as in C ("\n",
/// "\x1b").
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace neap
