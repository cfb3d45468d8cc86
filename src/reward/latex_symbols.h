// Converts LaTeX commands and Unicode characters to one spelling each.
//
// Threads   stateless functions.
//
// Cost      linear in the text's length.
#pragma once

#include <string>
#include <string_view>

namespace neap::reward {

/// Removes commands of size and spacing and "$", and replaces other commands by plain names.
[[nodiscard]] std::string replace_names(std::string_view text);

}  // namespace neap::reward
