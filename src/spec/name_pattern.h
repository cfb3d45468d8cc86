// Regular expressions over the paths of modules, as PEFT's configurations have them.
//
// Threads   a value; may be shared when const.
// Failure   kUnsupported for what does not compile, has more than 2000 bytes, or in a build without
//           PCRE2. A path whose match takes too many steps does not match.
// Cost      bounded for any pattern and path: files are not trusted.
#pragma once

#include <string_view>
#include <utility>

#include "base/regex.h"
#include "base/status.h"

namespace neap::spec {

class NamePattern {
 public:
  [[nodiscard]] static Result<NamePattern> compile(std::string_view text);
  /// The whole path.
  [[nodiscard]] bool matches(std::string_view path) const;

 private:
  explicit NamePattern(Regex regex) : regex_(std::move(regex)) {}
  Regex regex_;
};

}  // namespace neap::spec
