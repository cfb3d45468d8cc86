// Commands of LaTeX and characters of Unicode, each written in one way.
//
// Threads   functions without state.   Cost   linear in the text's length.
#pragma once

#include <string>
#include <string_view>

namespace neap::reward {

/// `text` without commands of size and spacing, with others by their plain names, and without "$".
[[nodiscard]] std::string replace_names(std::string_view text);

}  // namespace neap::reward
