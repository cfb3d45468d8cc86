// Converts regular expressions of tokenizer.json from Oniguruma's Ruby syntax to PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace neap::text {

/// Converts an expression for PCRE2 with UTF, UCP and MULTILINE. White space, \w, \h, \p{...} and
/// nested classes keep their meaning. Throws, naming `where`, if PCRE2 cannot express it.
[[nodiscard]] std::string pcre_of_onig(std::string_view pattern, std::string_view where);

}  // namespace neap::text
