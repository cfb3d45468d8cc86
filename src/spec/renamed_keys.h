// Keys that had another name before version 0.1.0.
//
// Threads   a function without state.
#pragma once

#include <string>
#include <string_view>

namespace neap::spec {

/// What to write instead of an old key; empty: `path` is not one.
[[nodiscard]] std::string explain_renamed_key(std::string_view path);

}  // namespace neap::spec
