#include "spec/name_pattern.h"

#include <utility>

#include "base/format.h"

namespace neap::spec {
namespace {

constexpr std::size_t kLongest = 2000;

Status refused(std::string_view text, std::string_view why) {
  return {ErrorCode::kUnsupported,
          format("the regular expression \"{}\" {}", text.substr(0, 100), why)};
}

}  // namespace

Result<NamePattern> NamePattern::compile(std::string_view text) {
  if (text.size() > kLongest) return refused(text, format("has over {} bytes", kLongest));
  // The automaton's size has to be linear in the pattern's, and so does the depth at which it is
  // walked: counts multiply states, and look-around starts walks inside of walks.
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (text[i] == '\\' && rest.size() > 1) {
      if (rest[1] >= '0' && rest[1] <= '9') return refused(text, "has a back-reference");
      plain += rest.substr(0, 2);
      ++i;
    } else if (rest.starts_with("(?") && !rest.starts_with("(?:")) {
      return refused(text, "has look-around or flags");
    } else if (rest.starts_with("{1,}") || rest.starts_with("{0,}")) {
      plain += rest[1] == '1' ? '+' : '*';
      i += 3;
    } else if (text[i] == '{') {
      return refused(text, "has a counted repetition");
    } else {
      plain += text[i];
    }
  }
  try {
    // Breadth first: no backtracking.
    return NamePattern(
        std::regex(plain, std::regex::ECMAScript | std::regex_constants::__polynomial));
  } catch (const std::regex_error&) {
    return refused(text, "is not valid");
  }
}

bool NamePattern::matches(std::string_view path) const {
  try {
    return std::regex_match(path.begin(), path.end(), code_);
  } catch (const std::regex_error&) {
    return false;  // out of the library's own bounds
  }
}

}  // namespace neap::spec
