// Driver functions for memory shared between processes of one machine, and for streams that wait
// for a number in memory. They are separate, because drivers before CUDA 11.7 lack some of them.
//
// Threads   any.
//
// Failure   kUnsupported, with the missing function.
//
// Cost      one lookup per function, once per process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/cuda/driver.h"

namespace neap::device::cuda {

/// Handle of an allocation, for another process of the machine.
struct MemoryHandle {
  char bytes[64] = {};
};
constexpr unsigned kPeerAccessWhenOpened = 1;
constexpr unsigned kWaitUntilAtLeast = 0;  ///< by the sign of the difference, as numbers may wrap
constexpr unsigned kWriteAfterAll = 0;     ///< earlier writes of the stream are visible first

// Each line has the name, the exported symbol and the parameters.
#define NEAP_CUDA_PEER_FUNCTIONS(X)                                                              \
  X(allocate, "cuMemAlloc_v2", (DevicePtr * at, std::size_t size))                               \
  X(free, "cuMemFree_v2", (DevicePtr at))                                                        \
  X(get_handle, "cuIpcGetMemHandle", (MemoryHandle * handle, DevicePtr at))                      \
  X(open_handle, "cuIpcOpenMemHandle_v2", (DevicePtr * at, MemoryHandle handle, unsigned flags)) \
  X(close_handle, "cuIpcCloseMemHandle", (DevicePtr at))                                         \
  X(host_pointer, "cuMemHostGetDevicePointer_v2", (DevicePtr * at, void* host, unsigned flags))  \
  X(wait_value, "cuStreamWaitValue32_v2",                                                        \
    (Stream stream, DevicePtr at, std::uint32_t value, unsigned flags))                          \
  X(write_value, "cuStreamWriteValue32_v2",                                                      \
    (Stream stream, DevicePtr at, std::uint32_t value, unsigned flags))

struct PeerFunctions {
#define NEAP_DECLARE(name, symbol, parameters) Result32(*name) parameters = nullptr;
  NEAP_CUDA_PEER_FUNCTIONS(NEAP_DECLARE)
#undef NEAP_DECLARE
};

[[nodiscard]] Result<const PeerFunctions*> load_peer_functions(const Driver& driver);

}  // namespace neap::device::cuda
