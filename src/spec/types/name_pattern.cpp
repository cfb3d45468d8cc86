#include "spec/types/name_pattern.h"

#include "base/format.h"
#include "base/read_limits.h"
#include "base/text.h"

namespace neap::spec {
namespace {

constexpr const ReadLimits& kLimits = read_limits::kNamePattern;

std::string named(std::string_view pattern) {
  return "the regular expression " + quoted_pattern(pattern);
}

}  // namespace

Result<NamePattern> NamePattern::compile(std::string_view text) {
  if (Bytes(text.size()) > kLimits.part)
    return over_limit(named(text), kLimits, Excess::kPart, 0, ErrorCode::kUnsupported);
  auto regex = Regex::compile(text, kLimits, {.whole_text = true, .unicode = false});
  if (!regex.ok())
    return Status(ErrorCode::kUnsupported, format("{} does not compile: {}; {}", named(text),
                                                  regex.status().message(), kLimits.advice));
  return NamePattern(std::move(*regex), text);
}

Result<bool> NamePattern::matches(std::string_view path) const {
  Regex::Finds finds;
  switch (regex_.search(path, 0, finds)) {
    case Regex::Outcome::kFound:
      return true;
    case Regex::Outcome::kNone:
      return false;
    case Regex::Outcome::kFailed:
      break;
  }
  return finds.failure(format("{} on {}", named(text_), excerpt(path, 100)));
}

}  // namespace neap::spec
