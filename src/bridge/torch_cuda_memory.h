// What libtorch's allocator holds on a card: its ceiling, and cuBLAS' workspaces. In a file of its own because it alone
// needs CUDA's headers; the symbol it uses is looked up in the libc10_cuda that torch_cuda() has loaded.
//
// All of it needs torch_cuda().available. Threads: any. Failure: neap::Error.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator;
}

namespace neap::bridge {

/// libtorch's allocator of GPU memory.
[[nodiscard]] c10::cuda::CUDACachingAllocator::CUDAAllocator& torch_cuda_allocator();

/// What libtorch's allocator was asked for when it last gave up since the process' first limit, in bytes; zero:
/// never. libtorch takes an observer for good, so it is one for the process.
struct TorchCudaOom {
  std::uint64_t count = 0;  ///< times so far
  Bytes requested;          ///< by the last
};
[[nodiscard]] TorchCudaOom last_torch_cuda_oom();

/// While it lives, libtorch holds at most `limit` (zero: as much as it gets) of card `ordinal` for this process, and throws
/// c10::OutOfMemoryError beyond it; then it has the limit that it had. It compares a whole new segment although an
/// expandable one grows by less, so a request that would end within one segment (20 MiB) under the limit may be refused:
/// callers add kTorchCudaSegment. Cost: a lock at each end.
class TorchCudaLimit {
 public:
  TorchCudaLimit(int ordinal, Bytes limit);
  TorchCudaLimit(const TorchCudaLimit&) = delete;
  TorchCudaLimit& operator=(const TorchCudaLimit&) = delete;
  ~TorchCudaLimit();

 private:
  int ordinal_;
  double before_;  // as libtorch has it: a share of the card
};
inline constexpr Bytes kTorchCudaSegment = Bytes(20 << 20);

/// Makes the two workspaces that cuBLAS keeps for the calling thread. Made at their first use they would lie wherever the
/// phase of that moment left room, and cost other phases a segment more or less; made first, they lie where the planner
/// takes them to be (plan/transients.cpp, in this order). Cost: 33 MiB on Hopper for the rest of the process, once.
void make_cublas_workspaces(int ordinal);

}  // namespace neap::bridge
