#include "bridge/torch_cuda_memory.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>

#include "base/status.h"
#include "step/counting/cublas_workspaces.h"

namespace neap::bridge {
namespace {

std::atomic<std::uint64_t> oom_count{0}, last_request{0};

void observe_oom() {
  static const bool kOnce = [] {
    torch_cuda_allocator().attachOutOfMemoryObserver(
        [](std::int64_t, std::size_t requested, std::size_t, std::size_t) {
          last_request = requested;
          ++oom_count;
        });
    return true;
  }();
  (void)kOnce;
}

}  // namespace

std::atomic<c10::cuda::CUDACachingAllocator::CUDAAllocator*>& torch_cuda_allocator_slot() {
  using c10::cuda::CUDACachingAllocator::CUDAAllocator;
  // c10::cuda::CUDACachingAllocator::allocator, which get() reads; this binary does not link it.
  static constexpr const char* kSymbol = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
  static auto* const kSlot =
      static_cast<std::atomic<CUDAAllocator*>*>(dlsym(RTLD_DEFAULT, kSymbol));
  if (kSlot == nullptr || kSlot->load() == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "libc10_cuda has no caching allocator: is this the torch that Neap was built for?");
  }
  return *kSlot;
}

c10::cuda::CUDACachingAllocator::CUDAAllocator& torch_cuda_allocator() {
  return *torch_cuda_allocator_slot().load();
}

TorchCudaOom last_torch_cuda_oom() {
  return {oom_count.load(), Bytes(last_request.load())};
}

TorchCudaLimit::TorchCudaLimit(int ordinal, Bytes limit) : ordinal_(ordinal) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  observe_oom();
  const auto index = static_cast<c10::DeviceIndex>(ordinal);
  const auto total = static_cast<double>(torch_cuda_allocator().getMemoryInfo(index).second);
  before_ = torch_cuda_allocator().getMemoryFraction(index);
  // Half a byte more than requested, because the allocator rounds the product down.
  const double share = (static_cast<double>(limit.count()) + 0.5) / total;
  torch_cuda_allocator().setMemoryFraction(limit.is_zero() ? 1.0 : std::min(share, 1.0), index);
}

TorchCudaLimit::~TorchCudaLimit() {
  torch_cuda_allocator().setMemoryFraction(before_, static_cast<c10::DeviceIndex>(ordinal_));
}

void make_cublas_workspaces(int ordinal) {
  const at::Device card(at::kCUDA, static_cast<c10::DeviceIndex>(ordinal));
  const at::Tensor x = at::ones({step::kCublasSide, step::kCublasSide},
                                at::TensorOptions().dtype(at::kBFloat16).device(card));
  for (const step::CublasWorkspace& workspace : step::kCublasWorkspaces)
    (void)(workspace.with_bias ? at::addmm(x.select(0, 0), x, x) : at::mm(x, x));
  torch_cuda_allocator().emptyCache();
}

}  // namespace neap::bridge
