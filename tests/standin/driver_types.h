// The few declarations of the CUDA driver's and runtime's binary interface that the stand-in serves.
// Values are the interface's own numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace neap::standin {

enum : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kIllegalAddress = 700,
  kHostAlreadyRegistered = 712,
  kHostNotRegistered = 713,
  kNotSupported = 801,
  kUnknown = 999,
};

struct Location {
  int type;  ///< 1 is a device
  int id;
};
struct AllocationProperties {
  int type;              ///< 1 is pinned
  int requested_handle;  ///< 1 is a POSIX file descriptor
  Location location;
  void* win32_meta;
  struct {
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
struct AccessDescriptor {
  Location location;
  int flags;  ///< 3 is read and write
};

}  // namespace neap::standin
