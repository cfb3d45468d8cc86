// What the real torch calls besides, so that its caching allocator, memory pools and captures run over
// the stand-in: properties, streams, events, graphs. Kernels do nothing; copies do copy.
#include <atomic>
#include <cstring>

#include "runtime.h"

using namespace neap::standin;  // NOLINT(google-build-using-namespace)

namespace {

/// cudaDeviceProp: fields that torch reads lie at these offsets in CUDA 12 and 13.
constexpr std::size_t kTotalMemory = 288, kWarpSize = 308, kThreadsPerBlock = 320, kMajor = 360;

template <class T>
void put(void* structure, std::size_t offset, T value) {
  std::memcpy(static_cast<char*>(structure) + offset, &value, sizeof value);
}

}  // namespace

STANDIN_API int cudaGetDeviceProperties_v2(void* properties, int device) {
  std::size_t total = 0;
  if (const int result = call("cuDeviceTotalMem_v2", &total, device); result != 0) {
    return report(result);
  }
  std::memset(properties, 0, 1000);
  std::strcpy(static_cast<char*>(properties), "stand-in");
  put(properties, kTotalMemory, total);
  put(properties, kWarpSize, 32);
  put(properties, kThreadsPerBlock, 1024);
  put(properties, kMajor, 9);
  return 0;
}
STANDIN_API int cudaGetDeviceProperties(void* properties, int device) {
  return cudaGetDeviceProperties_v2(properties, device);
}
STANDIN_API int cudaDeviceGetAttribute(int* value, int, int) {
  *value = 1;
  return 0;
}
STANDIN_API int cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return 0;
}
STANDIN_API int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return 0;
}
STANDIN_API int cudaStreamCreateWithFlags(Opaque* stream, unsigned flags) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuStreamCreate", stream, flags));
}
STANDIN_API int cudaStreamCreateWithPriority(Opaque* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
STANDIN_API int cudaPointerGetAttributes(void* attributes, const void* at) {
  std::memset(attributes, 0, 32);
  int device = 0;
  if (call("cuPointerGetAttribute", static_cast<void*>(&device), 9, address(at)) == 0) {
    put(attributes, 0, 2);  // device memory
    put(attributes, 4, device);
    put(attributes, 8, at);
  }
  return 0;
}
STANDIN_API int cudaEventCreateWithFlags(Opaque* event, unsigned) {
  static std::atomic<Opaque> next{0x9000};
  *event = next.fetch_add(1);
  return 0;
}
STANDIN_API int cudaEventCreate(Opaque* event) {
  return cudaEventCreateWithFlags(event, 0);
}

STANDIN_API int cudaStreamBeginCapture(Opaque stream, int mode) {
  return report(call("cuStreamBeginCapture_v2", stream, mode));
}
STANDIN_API int cudaStreamEndCapture(Opaque stream, Opaque* graph) {
  return report(call("cuStreamEndCapture", stream, graph));
}
STANDIN_API int cudaStreamIsCapturing(Opaque stream, int* state) {
  if (const int result = enter(); result != 0) return report(result);
  return report(call("cuStreamIsCapturing", stream, state));
}
STANDIN_API int cudaThreadExchangeStreamCaptureMode(int* mode) {
  return report(call("cuThreadExchangeStreamCaptureMode", mode));
}
STANDIN_API int cudaStreamGetCaptureInfo_v2(Opaque stream, int* state, unsigned long long* id,
                                            Opaque* graph, const Opaque** nodes,
                                            std::size_t* count) {
  if (id != nullptr) *id = 1;
  if (graph != nullptr) *graph = 0x6000;
  if (nodes != nullptr) *nodes = nullptr;
  if (count != nullptr) *count = 0;
  return cudaStreamIsCapturing(stream, state);
}
#if STANDIN_CUDART_MAJOR >= 13
STANDIN_API int cudaStreamGetCaptureInfo(Opaque stream, int* state, unsigned long long* id,
                                         Opaque* graph, const Opaque** nodes, const void**,
                                         std::size_t* count) {
  return cudaStreamGetCaptureInfo_v2(stream, state, id, graph, nodes, count);
}
#endif
STANDIN_API int cudaGraphInstantiate(Opaque* graph, Opaque, unsigned long long) {
  *graph = 0x7000;
  return 0;
}
STANDIN_API int cudaGraphInstantiateWithFlags(Opaque* graph, Opaque, unsigned long long) {
  *graph = 0x7000;
  return 0;
}
STANDIN_API int cudaGraphGetNodes(Opaque, Opaque*, std::size_t* count) {
  *count = 1;
  return 0;
}

STANDIN_API int cudaHostAlloc(void** at, std::size_t size, unsigned) {
  *at = std::calloc(1, size);
  return *at != nullptr ? 0 : report(2);
}
STANDIN_API int cudaFreeHost(void* at) {
  std::free(at);
  return 0;
}
STANDIN_API const char* cudaGetErrorName(int error) {
  return error == 0 ? "cudaSuccess" : "cudaError";
}
STANDIN_API void** __cudaRegisterFatBinary(void*) {
  static void* binary = nullptr;
  return &binary;
}
