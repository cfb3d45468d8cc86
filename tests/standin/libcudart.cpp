// libcudart.so.12 and .13 over libcuda's stand-in: what a small CUDA program calls. What torch calls
// besides is in torch_runtime.cpp.
#include "runtime.h"

using namespace neap::standin;  // NOLINT(google-build-using-namespace)

namespace {

int allocate(void** at, std::size_t size) {
  if (at == nullptr) return 1;
  if (const int result = enter(); result != 0) return result;
  if (size == 0) {
    *at = nullptr;
    return 0;
  }
  return call("cuMemAlloc_v2", reinterpret_cast<Address*>(at), size);
}
int deallocate(void* at) {
  if (const int result = enter(); result != 0) return result;
  if (at == nullptr) return 0;
  return call("cuMemFree_v2", reinterpret_cast<Address>(at));
}

}  // namespace

STANDIN_API int cudaGetDeviceCount(int* count) {
  if (const int result = call("cuInit", 0u); result != 0) return report(result);
  return report(call("cuDeviceGetCount", count));
}
STANDIN_API int cudaGetDevice(int* device) {
  *device = chosen_device;
  return 0;
}
STANDIN_API int cudaSetDevice(int device) {
  int count = 0;
  if (const int result = cudaGetDeviceCount(&count); result != 0) return result;
  if (device < 0 || device >= count) return report(101);
  chosen_device = device;
  return report(enter());
}
STANDIN_API int cudaRuntimeGetVersion(int* version) {
  *version = STANDIN_CUDART_MAJOR * 1000;
  return 0;
}
STANDIN_API int cudaDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", version);
}
STANDIN_API int cudaGetLastError() {
  const int error = last_error;
  last_error = 0;
  return error;
}
STANDIN_API int cudaPeekAtLastError() {
  return last_error;
}
STANDIN_API const char* cudaGetErrorString(int error) {
  return error == 0 ? "no error" : error == 2 ? "out of memory" : "stand-in error";
}
STANDIN_API int cudaMalloc(void** at, std::size_t size) {
  return report(allocate(at, size));
}
STANDIN_API int cudaFree(void* at) {
  return report(deallocate(at));
}
STANDIN_API int cudaMallocAsync(void** at, std::size_t size, Opaque) {
  return report(allocate(at, size));
}
STANDIN_API int cudaMallocFromPoolAsync(void** at, std::size_t size, Opaque, Opaque) {
  return report(allocate(at, size));
}
STANDIN_API int cudaFreeAsync(void* at, Opaque) {
  return report(deallocate(at));
}
STANDIN_API int cudaMallocManaged(void** at, std::size_t size, unsigned) {
  return report(allocate(at, size));
}
STANDIN_API int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuMemGetInfo_v2", free, total));
}
STANDIN_API int cudaMemcpy(void* to, const void* from, std::size_t size, int kind) {
  if (const int result = enter(); result != 0) return report(result);
  switch (kind) {
    case 1:
      return report(call("cuMemcpyHtoD_v2", address(to), from, size));
    case 2:
      return report(call("cuMemcpyDtoH_v2", to, address(from), size));
    case 3:
      return report(call("cuMemcpyDtoD_v2", address(to), address(from), size));
    default:
      return report(1);
  }
}
STANDIN_API int cudaMemcpyAsync(void* to, const void* from, std::size_t size, int kind, Opaque) {
  return cudaMemcpy(to, from, size, kind);
}
STANDIN_API int cudaMemset(void* at, int value, std::size_t size) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuMemsetD8_v2", address(at), static_cast<unsigned char>(value), size));
}
STANDIN_API int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  static thread_local std::uint64_t enabled[64] = {};
  int count = 0;
  if (const int result = cudaGetDeviceCount(&count); result != 0) return result;
  if (peer < 0 || peer >= count || peer == chosen_device) return report(101);
  const std::uint64_t bit = std::uint64_t{1} << peer;
  if ((enabled[chosen_device] & bit) != 0) return report(704);
  enabled[chosen_device] |= bit;
  return 0;
}
STANDIN_API int cudaDeviceSynchronize() {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuCtxSynchronize"));
}
STANDIN_API int cudaStreamCreate(Opaque* stream) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuStreamCreate", stream, 0u));
}
STANDIN_API int cudaStreamDestroy(Opaque stream) {
  return report(call("cuStreamDestroy_v2", stream));
}
STANDIN_API int cudaStreamSynchronize(Opaque stream) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuStreamSynchronize", stream));
}
STANDIN_API int cudaHostRegister(void* at, std::size_t size, unsigned flags) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuMemHostRegister_v2", at, size, flags));
}
STANDIN_API int cudaHostUnregister(void* at) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuMemHostUnregister", at));
}
