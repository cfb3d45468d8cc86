// Where the ticks of a chart's axis are.
//
// Threads   functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace neap::report {

/// 1, 2 or 5 times a power of ten: the next one from `least` on, which is over 0.
[[nodiscard]] double nice_step(double least);
/// Ticks of an axis from 0 to `most` bytes: a power of two apart, at most `count` of them.
[[nodiscard]] std::vector<std::uint64_t> byte_ticks(std::uint64_t most, std::size_t count);

}  // namespace neap::report
