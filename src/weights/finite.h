// NaN and infinity among the bytes of a tensor.
//
// Threads   a function without state.   Cost   one pass, faster than a hash.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace neap::weights {

/// Whether all of whole elements of `dtype` ("F32", "BF16", "F16", "F64") are finite; true for other types.
[[nodiscard]] bool all_finite(std::string_view dtype, std::span<const std::byte> bytes);

}  // namespace neap::weights
