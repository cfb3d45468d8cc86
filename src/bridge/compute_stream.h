// The compute stream of a job on a GPU. It comes from libtorch's pool, and is not CUDA's default
// stream.
//
// Model     The default stream waits for streams of other libraries, and cannot be captured into a
//           graph. All jobs of a process share one compute stream per GPU, because cuBLAS keeps a
//           workspace and libtorch's allocator a pool for each stream.
// Threads   libtorch has a current stream per thread.
// Failure   c10::Error from libtorch.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <optional>

#include "device/device.h"

namespace neap::bridge {

class ComputeStream {
 public:
  /// A CPU has no stream. For a GPU, libtorch_cuda must be loaded (torch_cuda.h).
  explicit ComputeStream(c10::Device device);

  /// The driver's handle; kDefault for a CPU.
  [[nodiscard]] device::StreamId id() const { return id_; }

  /// Makes the stream and its GPU libtorch's current ones on this thread while it lives. Work on it
  /// starts after earlier work of the previous stream, and later work of the previous stream starts
  /// after work on it. The host never waits.
  class Current {
   public:
    explicit Current(const ComputeStream& stream);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();

   private:
    // libtorch's events switch to the current GPU when they are done. If that is another one, this
    // creates a context there, which takes half a GiB.
    c10::OptionalDeviceGuard device_;
    std::optional<c10::Stream> before_;  // nullopt: nothing changed
  };

 private:
  std::optional<c10::Stream> stream_;
  device::StreamId id_ = device::StreamId::kDefault;
};

}  // namespace neap::bridge
