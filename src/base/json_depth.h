// How deep JSON text nests, before it is parsed: parsers and readers recurse.
#pragma once

#include <string_view>

namespace neap {

/// Whether arrays and objects nest deeper than `levels`. Brackets in strings do not count. Linear in the
/// text; text that is no JSON gives some answer.
[[nodiscard]] bool json_deeper_than(std::string_view text, int levels);

}  // namespace neap
