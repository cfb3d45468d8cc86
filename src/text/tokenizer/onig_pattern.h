// Regular expressions of tokenizer.json, which are Oniguruma's Ruby syntax, in PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace neap::text {

/// The same expression for PCRE2 with UTF, UCP and MULTILINE: white space, \w, \h, \p{...} and
/// nested classes as Oniguruma has them. Throws, naming `where`, on what PCRE2 cannot express.
[[nodiscard]] std::string pcre_of_onig(std::string_view pattern, std::string_view where);

}  // namespace neap::text
