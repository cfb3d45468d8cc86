// The part of a recorded call stack that shows users where a block comes from.
//
// Model     PyTorch records its own frames first. With stacks="all" these are its allocator and
//           operators in C++, then its Python. A user knows the Python frames after them.
//
// Threads   free functions; any thread.
//
// Cost      one pass over the frames.
#pragma once

#include <string>

#include "trace/recording.h"

namespace neap::replay {

/// Up to three innermost frames of the user's Python: "loss (train.py:40) < main (train.py:90)".
/// Without these, frames of PyTorch's Python. Without those, C++ frames outside of the allocator.
/// Empty without a stack.
[[nodiscard]] std::string stack_text(const trace::Recording& recording, std::uint32_t stack);

}  // namespace neap::replay
