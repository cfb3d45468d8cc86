// The CUDA runtime that the hooks forward calls to. It is found at run time; this library is not
// linked to it.
//
// Threads   any.
//
// Failure   a null function, which the caller reports.
#pragma once

#include <cstddef>
#include <cstdint>

namespace neap::hook {

/// cudaError_t values that the hooks themselves return.
enum CudaError : int {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaOutOfMemory = 2,
  kCudaInitializationError = 3,
  kCudaSymbolNotFound = 500,
  kCudaPeerAccessAlreadyEnabled = 704,
  kCudaNotSupported = 801,
  kCudaCaptureUnsupported = 900,
  kCudaUnknown = 999,
};

using CudaStream = void*;

/// Finds the next definition of `name` after this library. It searches the global scope
/// (RTLD_NEXT), then a loaded libcudart of CUDA 13 or 12, then one that the loader finds. Null if
/// none exists. The caller caches a result. After a failure it tries again, because a runtime may
/// be loaded later.
[[nodiscard]] void* find_in_cudart(const char* name);

/// One function of the runtime, looked up at its first use.
template <class Function>
class CudartFunction {
 public:
  explicit constexpr CudartFunction(const char* name) : name_(name) {}
  [[nodiscard]] Function get() {
    Function known = __atomic_load_n(&function_, __ATOMIC_ACQUIRE);
    if (known != nullptr) return known;
    known = reinterpret_cast<Function>(find_in_cudart(name_));
    __atomic_store_n(&function_, known, __ATOMIC_RELEASE);
    return known;
  }

 private:
  const char* name_;
  Function function_ = nullptr;
};

/// The calling thread's current device in the runtime; 0 without a runtime.
[[nodiscard]] int current_device();

}  // namespace neap::hook
