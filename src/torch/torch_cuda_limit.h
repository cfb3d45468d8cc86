// A ceiling for libtorch's allocator on a card. It lives in a file of its own because it is the only one that needs
// CUDA's headers; the symbol it uses is looked up in the libc10_cuda that torch_cuda() has loaded.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace neap::bridge {

/// What libtorch's allocator was asked for when it last gave up, in bytes; zero: never. Threads: any.
struct TorchCudaRefusal {
  std::uint64_t count = 0;  ///< refusals so far
  Bytes requested;          ///< by the last
};
[[nodiscard]] TorchCudaRefusal torch_cuda_refusal();

/// From now on libtorch holds at most `limit` (zero: as much as it gets) of card `ordinal` for this process, and throws c10::OutOfMemoryError
/// beyond it. It compares a whole new segment although an expandable one grows by less, so a request that would end
/// within one segment (20 MiB) under the limit may be refused: callers add kTorchCudaSegment. Needs
/// torch_cuda().available. Failure: neap::Error. Cost: a lock.
void limit_torch_cuda(int ordinal, Bytes limit);
inline constexpr Bytes kTorchCudaSegment = Bytes(20 << 20);

}  // namespace neap::bridge
