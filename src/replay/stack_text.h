// The part of a recorded call stack that tells users where a block comes from.
//
// Model     PyTorch records its own frames first: with stacks="all" those of its allocator and its
//           operators in C++, then its Python. A user knows the Python frames behind them.
// Threads   free functions; any thread.
// Cost      one pass over the frames.
#pragma once

#include <string>

#include "trace/recording.h"

namespace neap::replay {

/// The innermost frames of the user's Python with their callers, three in all: "loss (train.py:40) <
/// main (train.py:90)". Without any, those of PyTorch's Python; without these, those of C++ outside
/// the allocator. Empty for no stack.
[[nodiscard]] std::string stack_text(const trace::Recording& recording, std::uint32_t stack);

}  // namespace neap::replay
