// The CUDA driver's functions, found at run time, so that one binary runs with and without a GPU.
//
// Declares only the functions that Neap calls, with plain types. Values are those of the driver interface.
//
// Threads   any, after load_driver().
//
// Cost      load: one dlopen and one lookup per function, once per process.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/status.h"

namespace neap::device::cuda {

using Result32 = int;                  // CUresult
using DevicePtr = unsigned long long;  // CUdeviceptr
using Handle = unsigned long long;     // CUmemGenericAllocationHandle
using Context = void*;
using Stream = void*;
using Event = void*;
constexpr Result32 kNotReady = 600;  ///< an event that has not happened yet
using Module = void*;
using Function = void*;
using Graph = void*;
using GraphExec = void*;

struct Location {
  int type = 1;  // a device
  int id = 0;
};
struct AllocationProperties {
  int type = 1;  // pinned
  int handle_types = 0;
  Location location;
  void* windows = nullptr;
  struct Flags {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};
struct AccessDescription {
  Location location;
  int flags = 3;  // kAccessReadWrite
};

constexpr int kHandlePosixDescriptor = 1;
constexpr int kHandleFabric = 8;
constexpr int kAccessNone = 0;
constexpr int kAccessReadWrite = 3;
constexpr int kGranularityRecommended = 1;
constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureThreadLocal = 1;
constexpr unsigned kHostRegisterPortable = 1;
constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeCapabilityMajor = 75;
constexpr int kAttributeCapabilityMinor = 76;
constexpr int kAttributeVirtualMemory = 102;
constexpr int kAttributePosixDescriptor = 103;
constexpr int kAttributeRdmaWithVirtualMemory = 110;
constexpr int kAttributeFabric = 128;

// Each line has the name, the exported symbol and the parameters.
#define NEAP_CUDA_DRIVER_FUNCTIONS(X)                                                              \
  X(init, "cuInit", (unsigned flags))                                                              \
  X(driver_version, "cuDriverGetVersion", (int* version))                                          \
  X(device_count, "cuDeviceGetCount", (int* count))                                                \
  X(device_get, "cuDeviceGet", (int* device, int ordinal))                                         \
  X(device_name, "cuDeviceGetName", (char* name, int size, int device))                            \
  X(device_total, "cuDeviceTotalMem_v2", (std::size_t * bytes, int device))                        \
  X(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, int device))             \
  X(can_access_peer, "cuDeviceCanAccessPeer", (int* can, int device, int peer))                    \
  X(context_retain, "cuDevicePrimaryCtxRetain", (Context * context, int device))                   \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                 \
  X(context_push, "cuCtxPushCurrent_v2", (Context context))                                        \
  X(context_pop, "cuCtxPopCurrent_v2", (Context * context))                                        \
  X(context_synchronize, "cuCtxSynchronize", (void))                                               \
  X(memory_info, "cuMemGetInfo_v2", (std::size_t * free, std::size_t * total))                     \
  X(granularity, "cuMemGetAllocationGranularity",                                                  \
    (std::size_t * size, const AllocationProperties* properties, int option))                      \
  X(reserve, "cuMemAddressReserve",                                                                \
    (DevicePtr * at, std::size_t size, std::size_t alignment, DevicePtr hint,                      \
     unsigned long long flags))                                                                    \
  X(unreserve, "cuMemAddressFree", (DevicePtr at, std::size_t size))                               \
  X(create, "cuMemCreate",                                                                         \
    (Handle * handle, std::size_t size, const AllocationProperties* properties,                    \
     unsigned long long flags))                                                                    \
  X(release, "cuMemRelease", (Handle handle))                                                      \
  X(map, "cuMemMap",                                                                               \
    (DevicePtr at, std::size_t size, std::size_t offset, Handle handle, unsigned long long flags)) \
  X(unmap, "cuMemUnmap", (DevicePtr at, std::size_t size))                                         \
  X(set_access, "cuMemSetAccess",                                                                  \
    (DevicePtr at, std::size_t size, const AccessDescription* list, std::size_t count))            \
  X(export_handle, "cuMemExportToShareableHandle",                                                 \
    (void* out, Handle handle, int type, unsigned long long flags))                                \
  X(import_handle, "cuMemImportFromShareableHandle",                                               \
    (Handle * handle, void* descriptor, int type))                                                 \
  X(host_register, "cuMemHostRegister_v2", (void* at, std::size_t size, unsigned flags))           \
  X(host_unregister, "cuMemHostUnregister", (void* at))                                            \
  X(copy_to_host_async, "cuMemcpyDtoHAsync_v2",                                                    \
    (void* to, DevicePtr from, std::size_t size, Stream stream))                                   \
  X(copy_to_device_async, "cuMemcpyHtoDAsync_v2",                                                  \
    (DevicePtr to, const void* from, std::size_t size, Stream stream))                             \
  X(copy_on_device_async, "cuMemcpyDtoDAsync_v2",                                                  \
    (DevicePtr to, DevicePtr from, std::size_t size, Stream stream))                               \
  X(fill_async, "cuMemsetD8Async",                                                                 \
    (DevicePtr at, unsigned char value, std::size_t count, Stream stream))                         \
  X(stream_create, "cuStreamCreate", (Stream * stream, unsigned flags))                            \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream stream))                                         \
  X(stream_synchronize, "cuStreamSynchronize", (Stream stream))                                    \
  X(stream_wait_event, "cuStreamWaitEvent", (Stream stream, Event event, unsigned flags))          \
  X(event_create, "cuEventCreate", (Event * event, unsigned flags))                                \
  X(event_destroy, "cuEventDestroy_v2", (Event event))                                             \
  X(event_record, "cuEventRecord", (Event event, Stream stream))                                   \
  X(event_synchronize, "cuEventSynchronize", (Event event))                                        \
  X(event_elapsed, "cuEventElapsedTime", (float* milliseconds, Event begin, Event end))            \
  X(module_load, "cuModuleLoadData", (Module * module, const void* image))                         \
  X(module_function, "cuModuleGetFunction",                                                        \
    (Function * function, Module module, const char* name))                                        \
  X(function_attribute, "cuFuncSetAttribute", (Function function, int attribute, int value))       \
  X(launch, "cuLaunchKernel",                                                                      \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters,  \
     void** extra))                                                                                \
  X(stream_is_capturing, "cuStreamIsCapturing", (Stream stream, int* status))                      \
  X(capture_begin, "cuStreamBeginCapture_v2", (Stream stream, int mode))                           \
  X(capture_end, "cuStreamEndCapture", (Stream stream, Graph * graph))                             \
  X(graph_nodes, "cuGraphGetNodes", (Graph graph, void** nodes, std::size_t* count))               \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                              \
    (GraphExec * exec, Graph graph, unsigned long long flags))                                     \
  X(graph_upload, "cuGraphUpload", (GraphExec exec, Stream stream))                                \
  X(graph_launch, "cuGraphLaunch", (GraphExec exec, Stream stream))                                \
  X(graph_exec_destroy, "cuGraphExecDestroy", (GraphExec exec))                                    \
  X(graph_destroy, "cuGraphDestroy", (Graph graph))                                                \
  X(error_name, "cuGetErrorName", (Result32 error, const char** name))                             \
  X(error_text, "cuGetErrorString", (Result32 error, const char** text))

/// CUlaunchConfig and CUlaunchAttribute of cuda.h.
struct LaunchAttribute {
  LaunchAttribute() = default;
  LaunchAttribute(int which, std::initializer_list<unsigned> numbers) : id(which) {
    std::ranges::copy(numbers, value.begin());
  }
  int id = 0;
  int padding = 0;
  alignas(8) std::array<unsigned, 16> value{};
};
static_assert(sizeof(LaunchAttribute) == 72);
constexpr int kFunctionMostShared = 8;      // bytes of shared memory that a launch may set
constexpr int kLaunchAttributeCluster = 4;  // blocks along x, y and z
constexpr int kLaunchAttributeEarly = 6;    // programmatic stream serialization: 1
struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1, block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

struct Driver {
#define NEAP_DECLARE(name, symbol, parameters) Result32(*name) parameters = nullptr;
  NEAP_CUDA_DRIVER_FUNCTIONS(NEAP_DECLARE)
#undef NEAP_DECLARE
  /// cuLaunchKernelEx; null before CUDA 11.8.
  Result32 (*launch_with)(const LaunchConfig* config, Function function, void** parameters,
                          void** extra) = nullptr;
  int version = 0;   ///< 13000 is CUDA 13.0
  std::string path;  ///< the library that was loaded
};

/// Loads libcuda.so.1 (or the file in NEAP_LIBCUDA) once and initializes it. kUnsupported with the
/// reason if that fails.
[[nodiscard]] Result<const Driver*> load_driver();

/// Converts a driver result to a Status; zero is ok. Out of memory and lost devices have their own
/// codes. Other errors are kDriver with the driver's error name and number.
[[nodiscard]] Status to_status(const Driver& driver, Result32 code, std::string_view what);

}  // namespace neap::device::cuda
