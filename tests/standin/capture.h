// Whether a wait is allowed beside the captures under way.
#pragma once

#include <cstdint>

namespace neap::standin {

using Stream = std::uint64_t;
inline constexpr Stream kAnyStream = ~Stream{0};

/// The driver's error when `stream` is being captured (kAnyStream: any); that capture is broken then.
int refuse_wait_in_capture(Stream stream);

}  // namespace neap::standin
