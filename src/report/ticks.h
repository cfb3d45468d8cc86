// Positions of the ticks on a chart's axis.
//
// Threads   stateless functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace neap::report {

/// The smallest of 1, 2 or 5 times a power of ten that is at least `least`, which is positive.
[[nodiscard]] double nice_step(double least);
/// Ticks of an axis from 0 to `most` bytes. Their distance is a power of two; there are at most
/// `count`.
[[nodiscard]] std::vector<std::uint64_t> byte_ticks(std::uint64_t most, std::size_t count);

}  // namespace neap::report
