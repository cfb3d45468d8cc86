// How the calls of libcuda.so.1 are written over Card.
#pragma once

#include <cstdint>

#include "card.h"

#define STANDIN_API extern "C" __attribute__((visibility("default")))
#define ENTER(name)                                                       \
  if (const int entered = Card::get().enter(name); entered != kSuccess) { \
    return entered;                                                       \
  }
#define ENTER_WITH_CONTEXT(name) \
  if (const int entered = Card::get().enter(name, true); entered != kSuccess) return entered;

using namespace neap::standin;  // NOLINT(google-build-using-namespace)
using Address = std::uint64_t;
using Opaque = std::uint64_t;

inline std::uint64_t host(const void* at) {
  return reinterpret_cast<std::uint64_t>(at);
}
