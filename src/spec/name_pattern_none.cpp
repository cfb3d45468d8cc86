// Instead of name_pattern.cpp where PCRE2 is missing.
#include "base/format.h"
#include "spec/name_pattern.h"

namespace neap::spec {

struct NamePattern::Code {};

Result<NamePattern> NamePattern::compile(std::string_view text) {
  return Status(ErrorCode::kUnsupported,
                format("the regular expression \"{}\" needs PCRE2, which this build lacks",
                       text.substr(0, 100)));
}
bool NamePattern::matches(std::string_view) const {
  return false;
}

}  // namespace neap::spec
