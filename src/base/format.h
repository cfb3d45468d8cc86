// The one place that names fmt, header-only: Debian's and torch's copies both work, each in its own
// file.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include "base/bytes.h"

template <>
struct fmt::formatter<neap::Bytes> : fmt::formatter<std::string> {
  template <class Context>
  auto format(neap::Bytes size, Context& context) const {
    return fmt::formatter<std::string>::format(neap::to_string(size), context);
  }
};

namespace neap {
using fmt::format;
}  // namespace neap
