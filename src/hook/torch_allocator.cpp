// PyTorch's pluggable allocator. neap.h explains a null result and an exception.
#include <stdexcept>

#include "base/format.h"
#include "hook/allocate.h"
#include "hook/error.h"
#include "hook/live.h"
#include "neap/neap.h"

namespace hook = neap::hook;

extern "C" {

NEAP_API void* neap_torch_malloc(ssize_t size, int device, void* /*stream*/) {
  void* address = nullptr;
  const neap_status status = hook::guarded([&]() -> neap::Status {
    if (size <= 0) return {};
    hook::Live::ensure_started();
    // Everything that PyTorch allocates from this pool becomes a region.
    const hook::Scope scope = hook::current_scope();
    NEAP_TRY_ASSIGN(const auto region,
                    hook::Runtime::get().allocate(device, scope.enabled ? scope : hook::Scope{},
                                                  neap::Bytes(static_cast<std::uint64_t>(size))));
    address = reinterpret_cast<void*>(region.address);  // NOLINT(performance-no-int-to-ptr)
    return {};
  });
  if (status != NEAP_OK && status != NEAP_OUT_OF_DEVICE_MEMORY) {
    throw std::runtime_error(hook::last_failure().message());
  }
  return address;
}

NEAP_API void neap_torch_free(void* address, ssize_t /*size*/, int /*device*/, void* /*stream*/) {
  if (address == nullptr) return;
  // A free cannot report a failure: it is logged, and the memory is freed with the process.
  const neap_status status = hook::guarded([&]() -> neap::Status {
    NEAP_TRY_ASSIGN(const bool freed, hook::free_region_at(address));
    if (freed) return {};
    NEAP_TRY(hook::Runtime::get().usable());
    return {neap::ErrorCode::kNotFound, neap::format("No region begins at {}", address)};
  });
  if (status != NEAP_OK) hook::log_hook_failure("neap_torch_free", hook::last_failure());
}

}  // extern "C"
