// Eight bf16 numbers that a thread reads at once.
#include "kernels/decoding_sizes.h"

using namespace neap::kernels::decoding;

struct alignas(16) Eight {
  unsigned pairs[kOfLane / 2];
};
