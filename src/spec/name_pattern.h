// Regular expressions over the paths of modules, as PEFT's configurations have them.
//
// Threads   a value; may be shared when const.
// Failure   kUnsupported for what is not read: look-around, back-references, counted repetitions,
//           more than 2000 bytes.
// Cost      a match is linear in path x pattern, whatever the pattern: files are not trusted.
#pragma once

#include <regex>
#include <string>
#include <string_view>

#include "base/status.h"

namespace neap::spec {

class NamePattern {
 public:
  [[nodiscard]] static Result<NamePattern> compile(std::string_view text);
  /// The whole path.
  [[nodiscard]] bool matches(std::string_view path) const;

 private:
  explicit NamePattern(std::regex code) : code_(std::move(code)) {}
  std::regex code_;
};

}  // namespace neap::spec
