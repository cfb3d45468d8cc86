// libcuda.so.1 without a GPU: the calls that Neap, its tests and the runtime's stand-in use, over
// Card. Streams run at once, so every asynchronous call is done when it returns.
//
// Environment  NEAP_STANDIN_BYTES (capacity of each device, 4 GiB), NEAP_STANDIN_DEVICES (1),
//              NEAP_STANDIN_FAIL=NAME:K[:RESULT] (the K-th call of NAME fails).
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "capture.h"
#include "libcuda.h"

namespace {
Opaque context_of(int device) {
  return 0xC0DE0000ull + static_cast<unsigned>(device);
}
int device_of_context(Opaque context) {
  return context == 0 ? -1 : static_cast<int>(context - 0xC0DE0000ull);
}
/// Devices of the contexts under the thread's current one.
std::vector<int>& pushed() {
  static thread_local std::vector<int> stack;
  return stack;
}
bool is_device(int device) {
  return device >= 0 && device < Card::get().device_count();
}
}  // namespace

STANDIN_API int cuInit(unsigned flags) {
  return flags == 0 ? Card::get().init() : kInvalidValue;
}
STANDIN_API int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
STANDIN_API int cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount")
  *count = Card::get().device_count();
  return kSuccess;
}
STANDIN_API int cuDeviceGet(int* device, int ordinal) {
  ENTER("cuDeviceGet")
  if (!is_device(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}
STANDIN_API int cuDeviceGetName(char* name, int size, int device) {
  ENTER("cuDeviceGetName")
  if (!is_device(device) || size <= 0) return kInvalidValue;
  std::snprintf(name, static_cast<std::size_t>(size), "stand-in %d", device);
  return kSuccess;
}
STANDIN_API int cuDeviceGetUuid_v2(void* uuid, int device) {
  ENTER("cuDeviceGetUuid")
  if (!is_device(device)) return kInvalidDevice;
  std::memset(uuid, device + 1, 16);
  return kSuccess;
}
STANDIN_API int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  ENTER("cuDeviceTotalMem")
  if (!is_device(device)) return kInvalidDevice;
  *bytes = Card::get().capacity();
  return kSuccess;
}
STANDIN_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER("cuDeviceGetAttribute")
  if (!is_device(device)) return kInvalidDevice;
  switch (attribute) {
    case 41:   // unified addressing
    case 102:  // virtual memory management
    case 103:  // handles as POSIX file descriptors
    case 40:   // copy engines
      *value = 1;
      return kSuccess;
    case 16:  // multiprocessors
      *value = 4;
      return kSuccess;
    case 75:  // compute capability
      *value = 9;
      return kSuccess;
    default:  // RDMA, fabric, multicast and the rest: not here
      *value = 0;
      return kSuccess;
  }
}
STANDIN_API int cuDeviceCanAccessPeer(int* can, int a, int b) {
  ENTER("cuDeviceCanAccessPeer")
  *can = is_device(a) && is_device(b) && a != b ? 1 : 0;
  return kSuccess;
}
STANDIN_API int cuDevicePrimaryCtxRetain(Opaque* context, int device) {
  ENTER("cuDevicePrimaryCtxRetain")
  if (!is_device(device)) return kInvalidDevice;
  *context = context_of(device);
  return kSuccess;
}
STANDIN_API int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER("cuDevicePrimaryCtxRelease")
  return is_device(device) ? kSuccess : kInvalidDevice;
}
STANDIN_API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  ENTER("cuDevicePrimaryCtxGetState")
  if (!is_device(device)) return kInvalidDevice;
  *flags = 0;
  *active = 1;
  return kSuccess;
}
STANDIN_API int cuCtxSetCurrent(Opaque context) {
  ENTER("cuCtxSetCurrent")
  current_device() = device_of_context(context);
  return kSuccess;
}
STANDIN_API int cuCtxGetCurrent(Opaque* context) {
  ENTER("cuCtxGetCurrent")
  *context = current_device() < 0 ? 0 : context_of(current_device());
  return kSuccess;
}
STANDIN_API int cuCtxPushCurrent_v2(Opaque context) {
  ENTER("cuCtxPushCurrent")
  pushed().push_back(current_device());
  current_device() = device_of_context(context);
  return kSuccess;
}
STANDIN_API int cuCtxPopCurrent_v2(Opaque* context) {
  ENTER("cuCtxPopCurrent")
  if (pushed().empty()) return kInvalidContext;
  if (context != nullptr) *context = current_device() < 0 ? 0 : context_of(current_device());
  current_device() = pushed().back();
  pushed().pop_back();
  return kSuccess;
}
STANDIN_API int cuCtxGetDevice(int* device) {
  ENTER_WITH_CONTEXT("cuCtxGetDevice")
  *device = current_device();
  return kSuccess;
}
STANDIN_API int cuCtxSynchronize() {
  ENTER_WITH_CONTEXT("cuCtxSynchronize")
  return refuse_wait_in_capture(kAnyStream);
}
STANDIN_API int cuCtxEnablePeerAccess(Opaque, unsigned) {
  ENTER_WITH_CONTEXT("cuCtxEnablePeerAccess")
  return kSuccess;
}

STANDIN_API int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER_WITH_CONTEXT("cuMemGetInfo")
  *free = Card::get().free_bytes(current_device());
  *total = Card::get().capacity();
  return kSuccess;
}
STANDIN_API int cuMemGetAllocationGranularity(std::size_t* size, const AllocationProperties*, int) {
  ENTER("cuMemGetAllocationGranularity")
  *size = kGranularity;
  return kSuccess;
}
STANDIN_API int cuMemAddressReserve(Address* at, std::size_t size, std::size_t alignment, Address,
                                    unsigned long long) {
  ENTER("cuMemAddressReserve")
  return Card::get().reserve(at, size, alignment);
}
STANDIN_API int cuMemAddressFree(Address at, std::size_t size) {
  ENTER("cuMemAddressFree")
  return Card::get().unreserve(at, size);
}
STANDIN_API int cuMemCreate(Opaque* handle, std::size_t size,
                            const AllocationProperties* properties, unsigned long long) {
  ENTER("cuMemCreate")
  return Card::get().create(handle, size, properties);
}
STANDIN_API int cuMemRelease(Opaque handle) {
  ENTER("cuMemRelease")
  return Card::get().release(handle);
}
STANDIN_API int cuMemRetainAllocationHandle(Opaque* handle, void* at) {
  ENTER("cuMemRetainAllocationHandle")
  return Card::get().retain_at(handle, host(at));
}
STANDIN_API int cuMemMap(Address at, std::size_t size, std::size_t offset, Opaque handle,
                         unsigned long long) {
  ENTER("cuMemMap")
  return Card::get().map(at, size, offset, handle);
}
STANDIN_API int cuMemUnmap(Address at, std::size_t size) {
  ENTER("cuMemUnmap")
  return Card::get().unmap(at, size);
}
STANDIN_API int cuMemSetAccess(Address at, std::size_t size, const AccessDescriptor* list,
                               std::size_t count) {
  ENTER("cuMemSetAccess")
  return Card::get().set_access(at, size, list, count);
}
STANDIN_API int cuMemExportToShareableHandle(void* out, Opaque handle, int type,
                                             unsigned long long) {
  ENTER("cuMemExportToShareableHandle")
  if (type != 1) return kNotSupported;
  return Card::get().export_handle(static_cast<int*>(out), handle);
}
STANDIN_API int cuMemImportFromShareableHandle(Opaque* handle, void* os_handle, int type) {
  ENTER("cuMemImportFromShareableHandle")
  if (type != 1) return kNotSupported;
  return Card::get().import_handle(handle, static_cast<int>(host(os_handle)));
}

STANDIN_API int cuMemAlloc_v2(Address* at, std::size_t size) {
  ENTER_WITH_CONTEXT("cuMemAlloc")
  return size == 0 ? kInvalidValue : Card::get().allocate(at, size, current_device());
}
STANDIN_API int cuMemFree_v2(Address at) {
  ENTER("cuMemFree")
  return Card::get().deallocate(at);
}
STANDIN_API int cuMemHostRegister_v2(void* at, std::size_t size, unsigned) {
  ENTER_WITH_CONTEXT("cuMemHostRegister")
  return Card::get().register_host(host(at), size);
}
STANDIN_API int cuMemHostUnregister(void* at) {
  ENTER_WITH_CONTEXT("cuMemHostUnregister")
  return Card::get().unregister_host(host(at));
}

// No code runs on the stand-in.
STANDIN_API int cuModuleLoadData(void**, const void*) {
  return kNotSupported;
}
STANDIN_API int cuModuleGetFunction(void**, void*, const char*) {
  return kNotSupported;
}
STANDIN_API int cuFuncSetAttribute(void*, int, int) {
  return kNotSupported;
}
STANDIN_API int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, Opaque, void**, void**) {
  return kNotSupported;
}

STANDIN_API int cuPointerGetAttribute(void* data, int attribute, Address at) {
  ENTER("cuPointerGetAttribute")
  int device = 0;
  if (Card::get().device_of(at, &device) != kSuccess) return kInvalidValue;
  if (attribute == 2) {  // memory type: device
    *static_cast<unsigned*>(data) = 2;
  } else if (attribute == 9) {
    *static_cast<int*>(data) = device;
  } else {
    return kNotSupported;
  }
  return kSuccess;
}
STANDIN_API int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case kSuccess:
      *name = "CUDA_SUCCESS";
      break;
    case kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case kNotInitialized:
      *name = "CUDA_ERROR_NOT_INITIALIZED";
      break;
    case kInvalidDevice:
      *name = "CUDA_ERROR_INVALID_DEVICE";
      break;
    case kInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      break;
    case kInvalidHandle:
      *name = "CUDA_ERROR_INVALID_HANDLE";
      break;
    case kIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case kNotSupported:
      *name = "CUDA_ERROR_NOT_SUPPORTED";
      break;
    default:
      *name = "CUDA_ERROR_UNKNOWN";
      break;
  }
  return kSuccess;
}
STANDIN_API int cuGetErrorString(int error, const char** text) {
  return cuGetErrorName(error, text);
}
STANDIN_API int cuGetProcAddress_v2(const char* symbol, void** address, int, unsigned long long,
                                    int* status) {
  for (const char* suffix : {"_v2", ""}) {
    char name[128];
    std::snprintf(name, sizeof name, "%s%s", symbol, suffix);
    if (void* found = dlsym(RTLD_DEFAULT, name)) {
      *address = found;
      if (status != nullptr) *status = 0;
      return kSuccess;
    }
  }
  if (status != nullptr) *status = 1;
  return kNotFound;
}

/// For tests: what is alive, and failures on demand.
STANDIN_API void standin_live(Live* live) {
  *live = Card::get().live();
}
STANDIN_API void standin_fail(const char* name, int nth_call, int result) {
  Card::get().fail(name, nth_call, result);
}
