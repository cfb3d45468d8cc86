// The one place that names fmt, header-only: Debian's and torch's copies both work, each in its own
// file.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/bytes.h"

template <>
struct fmt::formatter<neap::Bytes> : fmt::formatter<std::string> {
  template <class Context>
  auto format(neap::Bytes size, Context& context) const {
    return fmt::formatter<std::string>::format(neap::to_string(size), context);
  }
};

namespace neap {

/// fmt::format as an object, not a function: no lookup by argument types finds a second one beside it
/// (std::format, where the standard library has it and an argument is a std::string).
struct Format {
  template <class... Args>
  [[nodiscard]] std::string operator()(fmt::format_string<Args...> text, Args&&... args) const {
    return fmt::format(text, std::forward<Args>(args)...);
  }
};
inline constexpr Format format{};

}  // namespace neap
