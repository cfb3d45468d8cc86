// Keys that were renamed before version 0.1.0.
//
// Threads   a stateless function.
#pragma once

#include <string>
#include <string_view>

namespace neap::spec {

/// The replacement for an old key; empty if `path` is not an old key.
[[nodiscard]] std::string explain_renamed_key(std::string_view path);

}  // namespace neap::spec
