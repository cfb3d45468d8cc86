// The hooks: LD_PRELOAD replaces the CUDA runtime's allocation functions. Inside a scope an allocation
// becomes a region; every other call is forwarded and counted.
//
// cudaMallocManaged is always forwarded: its memory is also host memory, which a region's is not.
#include <sys/single_threaded.h>

#include <atomic>
#include <cstdlib>

#include "base/format.h"
#include "base/log.h"
#include "hook/allocate.h"
#include "hook/cudart.h"
#include "hook/error.h"
#include "hook/live.h"
#include "hook/outside.h"
#include "neap/neap.h"

using neap::Bytes;
using neap::ErrorCode;
using neap::Status;
namespace hook = neap::hook;

namespace {

/// Turns off the registration of graph buffers in NCCL unless the user has set the variable. NCCL
/// registers buffers of collectives in captured graphs by their pages at capture. After a pause
/// other ranks would read and write the old pages, without an error. It runs only when the library
/// is loaded and the process has one thread: setenv() may free a text that another thread got from
/// getenv().
[[gnu::constructor]] void leave_graph_buffers_unregistered() {
  if (__libc_single_threaded != 0) ::setenv("NCCL_GRAPH_REGISTER", "0", /*replace=*/0);
}

using MallocFunction = int (*)(void**, std::size_t);
using FreeFunction = int (*)(void*);
using MallocAsyncFunction = int (*)(void**, std::size_t, hook::CudaStream);
using MallocFromPoolFunction = int (*)(void**, std::size_t, void*, hook::CudaStream);
using FreeAsyncFunction = int (*)(void*, hook::CudaStream);
using MallocManagedFunction = int (*)(void**, std::size_t, unsigned);
using PeerFunction = int (*)(int, unsigned);

hook::CudartFunction<int (*)()> last_error{"cudaGetLastError"};
hook::CudartFunction<int (*)(hook::CudaStream, int*)> stream_is_capturing{"cudaStreamIsCapturing"};

void clear_last_error() {
  if (const auto clear = last_error.get()) (void)clear();
}

bool is_captured(hook::CudaStream stream) {
  const auto ask = stream_is_capturing.get();
  int state = 0;
  if (ask == nullptr) return false;
  if (ask(stream, &state) == hook::kCudaSuccess) return state != 0;
  clear_last_error();
  return false;
}

/// A program's first cudaMalloc makes the device's context current in its thread, and later driver
/// calls may rely on that. Creating a region does not. This query does, and is allowed during a
/// capture.
void begin_runtime() {
  static thread_local bool begun = false;
  if (begun) return;
  begun = true;
  (void)is_captured(nullptr);
}

int cuda_error(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kOutOfDeviceMemory:
      return hook::kCudaOutOfMemory;
    case ErrorCode::kInvalidArgument:
      return hook::kCudaInvalidValue;
    case ErrorCode::kUnsupported:
      return hook::kCudaNotSupported;
    default:
      return hook::kCudaUnknown;
  }
}

/// Serves an allocation inside a scope. False: the caller forwards it. An allocation on a captured
/// stream is a node of the graph, which only the runtime can create.
bool serve(const char* call, void** out, std::size_t size, int* result,
           hook::CudaStream const* stream = nullptr) noexcept {
  hook::Live::ensure_started();
  const hook::Scope scope = hook::current_scope();
  if (!scope.enabled || size == 0 || out == nullptr) return false;
  begin_runtime();
  if (stream != nullptr && is_captured(*stream)) return false;
  const neap_status status = hook::guarded([&]() -> Status {
    NEAP_TRY_ASSIGN(const auto region,
                    hook::Runtime::get().allocate(hook::current_device(), scope, Bytes(size)));
    *out = reinterpret_cast<void*>(region.address);  // NOLINT(performance-no-int-to-ptr)
    return {};
  });
  *result = status == NEAP_OK ? hook::kCudaSuccess : cuda_error(hook::last_failure());
  if (status != NEAP_OK && status != NEAP_OUT_OF_DEVICE_MEMORY) {
    hook::log_hook_failure(call, hook::last_failure());
  }
  return true;
}

/// Frees a region. False if the address is not in a region: the caller forwards the call.
bool take_back(const char* call, void* address, hook::CudaStream const* stream,
               int* result) noexcept {
  if (address == nullptr) return false;
  bool ours = false;
  *result = hook::kCudaSuccess;
  const neap_status status = hook::guarded([&]() -> Status {
    if (stream != nullptr) {
      const auto place = hook::Runtime::get().look_up(address);
      if (!place) return {};
      ours = true;
      if (is_captured(*stream)) {  // waiting would invalidate the capture
        *result = hook::kCudaCaptureUnsupported;
        return {};
      }
      const auto id = static_cast<neap::device::StreamId>(reinterpret_cast<std::uint64_t>(*stream));
      NEAP_TRY(hook::Runtime::get().wait_for(*place, id));
    }
    NEAP_TRY_ASSIGN(const bool freed, hook::free_region_at(address));
    ours = ours || freed;
    return {};
  });
  if (status != NEAP_OK) {
    *result = cuda_error(hook::last_failure());
    hook::log_hook_failure(call, hook::last_failure());
    return true;
  }
  return ours;
}

/// Releases the pages that the stores keep, so that another allocation can use the memory.
bool release_kept_pages() noexcept {
  bool any = false;
  (void)hook::guarded([&]() -> Status {
    for (const hook::OpenDevice& on : hook::Runtime::get().devices()) {
      NEAP_TRY_ASSIGN(const Bytes released, on.arena->release_store());
      any = any || !released.is_zero();
    }
    return {};
  });
  return any;
}

int no_runtime(const char* call) {
  hook::log_hook_failure(
      call, Status(ErrorCode::kNotFound,
                   "found no libcudart with this function (libcudart.so.13, .so.12 or .so)"));
  return hook::kCudaSymbolNotFound;
}

template <class Function, class... Arguments>
int pass_on_malloc(hook::CudartFunction<Function>& function, const char* call, void** out,
                   std::size_t size, Arguments... arguments) {
  const Function next = function.get();
  if (next == nullptr) return no_runtime(call);
  int result = next(out, size, arguments...);
  if (result == hook::kCudaOutOfMemory && release_kept_pages()) {
    clear_last_error();
    result = next(out, size, arguments...);
  }
  if (result == hook::kCudaSuccess && out != nullptr) {
    hook::Outside::get().allocated(*out, Bytes(size), hook::current_device());
  } else {
    hook::Outside::get().failed();
  }
  return result;
}

template <class Function, class... Arguments>
int pass_on_free(hook::CudartFunction<Function>& function, const char* call, void* address,
                 Arguments... arguments) {
  const Function next = function.get();
  if (next == nullptr) return no_runtime(call);
  // Remove the record before freeing: afterwards another thread may get the same address.
  if (address != nullptr) hook::Outside::get().freed(address);
  return next(address, arguments...);
}

}  // namespace

extern "C" {

NEAP_API int cudaMalloc(void** out, std::size_t size) {
  static hook::CudartFunction<MallocFunction> next{"cudaMalloc"};
  int result = 0;
  if (serve("cudaMalloc", out, size, &result)) return result;
  return pass_on_malloc(next, "cudaMalloc", out, size);
}

NEAP_API int cudaFree(void* address) {
  static hook::CudartFunction<FreeFunction> next{"cudaFree"};
  int result = 0;
  if (take_back("cudaFree", address, nullptr, &result)) return result;
  return pass_on_free(next, "cudaFree", address);
}

// In the _ptsz functions stream 0 is the thread's default stream.
#define NEAP_HOOK_ASYNC(suffix, zero)                                                            \
  NEAP_API int cudaMallocAsync##suffix(void** out, std::size_t size, hook::CudaStream stream) {  \
    static hook::CudartFunction<MallocAsyncFunction> next{"cudaMallocAsync" #suffix};            \
    int result = 0;                                                                              \
    const hook::CudaStream on = stream != nullptr ? stream : (zero);                             \
    if (serve("cudaMallocAsync", out, size, &result, &on)) return result;                        \
    return pass_on_malloc(next, "cudaMallocAsync", out, size, stream);                           \
  }                                                                                              \
  NEAP_API int cudaMallocFromPoolAsync##suffix(void** out, std::size_t size, void* pool,         \
                                               hook::CudaStream stream) {                        \
    static hook::CudartFunction<MallocFromPoolFunction> next{"cudaMallocFromPoolAsync" #suffix}; \
    int result = 0;                                                                              \
    const hook::CudaStream on = stream != nullptr ? stream : (zero);                             \
    if (serve("cudaMallocFromPoolAsync", out, size, &result, &on)) return result;                \
    return pass_on_malloc(next, "cudaMallocFromPoolAsync", out, size, pool, stream);             \
  }                                                                                              \
  NEAP_API int cudaFreeAsync##suffix(void* address, hook::CudaStream stream) {                   \
    static hook::CudartFunction<FreeAsyncFunction> next{"cudaFreeAsync" #suffix};                \
    int result = 0;                                                                              \
    const hook::CudaStream on = stream != nullptr ? stream : (zero);                             \
    if (take_back("cudaFreeAsync", address, &on, &result)) return result;                        \
    return pass_on_free(next, "cudaFreeAsync", address, stream);                                 \
  }
NEAP_HOOK_ASYNC(, nullptr)
NEAP_HOOK_ASYNC(_ptsz, reinterpret_cast<hook::CudaStream>(2))  // NOLINT(performance-no-int-to-ptr)
#undef NEAP_HOOK_ASYNC

NEAP_API int cudaMallocManaged(void** out, std::size_t size, unsigned flags) {
  static hook::CudartFunction<MallocManagedFunction> next{"cudaMallocManaged"};
  hook::Live::ensure_started();
  return pass_on_malloc(next, "cudaMallocManaged", out, size, flags);
}

/// Memory of cudaMalloc is accessible to peers that enabled access. This gives regions the same
/// behaviour.
NEAP_API int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  static hook::CudartFunction<PeerFunction> next{"cudaDeviceEnablePeerAccess"};
  const PeerFunction function = next.get();
  if (function == nullptr) return no_runtime("cudaDeviceEnablePeerAccess");
  const int result = function(peer, flags);
  if (result == hook::kCudaSuccess || result == hook::kCudaPeerAccessAlreadyEnabled) {
    const neap_status status = hook::guarded(
        [&] { return hook::Runtime::get().grant_peer(peer, hook::current_device()); });
    if (status != NEAP_OK)
      hook::log_hook_failure("cudaDeviceEnablePeerAccess", hook::last_failure());
  }
  return result;
}

}  // extern "C"
