// Detects NaN and infinity in the bytes of a tensor.
//
// Threads   a stateless function.
//
// Cost      one pass, faster than a hash.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace neap::weights {

/// Whether all elements of `dtype` ("F32", "BF16", "F16", "F64") are finite. True for other types.
/// `bytes` has whole elements.
[[nodiscard]] bool all_finite(std::string_view dtype, std::span<const std::byte> bytes);

}  // namespace neap::weights
