// Eight bf16 numbers that a thread reads at once.
#include "kernels/decoding_sizes.h"

using namespace neap::kernels::decoding;

struct alignas(16) Eight {
  unsigned pairs[kOfLane / 2];
};

/// Reads without keeping the line in L1; zeros if not `inside`. Volatile, because the compiler moves
/// ld.global.nc behind wait_for_previous().
__device__ inline Eight read_once(const Bf16* from, bool inside) {
  Eight x;
  asm volatile(
      "{\n"
      ".reg .pred inside;\n"
      "setp.ne.s32 inside, %5, 0;\n"
      "mov.u32 %0, 0;\n"
      "mov.u32 %1, 0;\n"
      "mov.u32 %2, 0;\n"
      "mov.u32 %3, 0;\n"
      "@inside ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=&r"(x.pairs[0]), "=&r"(x.pairs[1]), "=&r"(x.pairs[2]), "=&r"(x.pairs[3])
      : "l"(from), "r"(static_cast<int>(inside))
      : "memory");
  return x;
}
