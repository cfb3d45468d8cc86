// Regular expressions for module paths, as in PEFT's configurations.
//
// Threads   a value; may be shared when const.
// Failure   kUnsupported for an invalid or too long pattern, or a build without PCRE2.
//           kInvalidArgument for a path on which the pattern exceeds read_limits::kNamePattern.
// Cost      bounded for any pattern and path, because files are not trusted.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/regex.h"
#include "base/status.h"

namespace neap::spec {

class NamePattern {
 public:
  [[nodiscard]] static Result<NamePattern> compile(std::string_view text);
  /// Whether the pattern matches the whole path.
  [[nodiscard]] Result<bool> matches(std::string_view path) const;

 private:
  NamePattern(Regex regex, std::string_view text) : regex_(std::move(regex)), text_(text) {}
  Regex regex_;
  std::string text_;
};

}  // namespace neap::spec
