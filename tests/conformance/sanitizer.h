// Whether this build runs under a sanitizer: it takes several times as long, and keeps what was freed for
// a while.
#pragma once

namespace neap {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kInstrumented = true;
#else
inline constexpr bool kInstrumented = false;
#endif

}  // namespace neap
