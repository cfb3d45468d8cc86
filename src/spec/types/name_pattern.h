// Regular expressions for module paths, as in PEFT's configurations.
//
// Threads   a value; may be shared when const.
// Failure   kUnsupported for an invalid pattern, one of more than 2000 bytes, or a build without
//           PCRE2. A path whose match exceeds the step limit does not match.
// Cost      bounded for any pattern and path, because files are not trusted.
#pragma once

#include <string_view>
#include <utility>

#include "base/regex.h"
#include "base/status.h"

namespace neap::spec {

class NamePattern {
 public:
  [[nodiscard]] static Result<NamePattern> compile(std::string_view text);
  /// Whether the pattern matches the whole path.
  [[nodiscard]] bool matches(std::string_view path) const;

 private:
  explicit NamePattern(Regex regex) : regex_(std::move(regex)) {}
  Regex regex_;
};

}  // namespace neap::spec
