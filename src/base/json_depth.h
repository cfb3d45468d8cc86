// Checks the nesting depth of JSON text before it is parsed, because parsers and readers are
// recursive.
#pragma once

#include <string_view>

namespace neap {

/// Whether arrays and objects nest deeper than `levels`. Brackets in strings do not count. The cost
/// is linear in the text. For text that is not JSON the answer is arbitrary.
[[nodiscard]] bool json_deeper_than(std::string_view text, int levels);

}  // namespace neap
