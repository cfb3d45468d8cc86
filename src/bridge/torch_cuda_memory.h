// libtorch's CUDA allocator: its limit, and cuBLAS' workspaces. Only this file and
// torch_cuda_scratch.cpp need CUDA's headers. Its symbol is looked up in the libc10_cuda that torch_cuda() has loaded.
//
// Threads   any; requires torch_cuda().available.
// Failure   neap::Error.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/bytes.h"

namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator;
}

namespace neap::bridge {

/// The place where libtorch finds its allocator of GPU memory.
[[nodiscard]] std::atomic<c10::cuda::CUDACachingAllocator::CUDAAllocator*>&
torch_cuda_allocator_slot();
/// libtorch's allocator of GPU memory.
[[nodiscard]] c10::cuda::CUDACachingAllocator::CUDAAllocator& torch_cuda_allocator();

/// Requests that libtorch's allocator failed since the process's first limit. An observer cannot be
/// removed from libtorch, so there is one per process.
struct TorchCudaOom {
  std::uint64_t count = 0;  ///< number of failures
  Bytes requested;          ///< bytes of the last one; zero: none
};
[[nodiscard]] TorchCudaOom last_torch_cuda_oom();

/// While it lives, libtorch holds at most `limit` bytes of GPU `ordinal` in this process (zero: no
/// limit). Beyond that, it throws c10::OutOfMemoryError. Then the previous limit is restored.
/// libtorch compares a whole new segment although an expandable one grows by less. So it may fail
/// requests within one segment (20 MiB) of the limit, and callers add kTorchCudaSegment. Cost: a
/// lock at construction and destruction.
class TorchCudaLimit {
 public:
  TorchCudaLimit(int ordinal, Bytes limit);
  TorchCudaLimit(const TorchCudaLimit&) = delete;
  TorchCudaLimit& operator=(const TorchCudaLimit&) = delete;
  ~TorchCudaLimit();

 private:
  int ordinal_;
  double before_;  // in libtorch's unit: a fraction of the GPU
};
inline constexpr Bytes kTorchCudaSegment = Bytes(20 << 20);

/// Makes step::kCublasWorkspaces for the calling thread. They stay for the rest of the process.
void make_cublas_workspaces(int ordinal);

}  // namespace neap::bridge
