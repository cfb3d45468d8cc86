// The stream of a GPU that a job computes on: one of libtorch's pool, not CUDA's default stream.
//
// Model     The default stream waits for streams of other libraries and cannot be captured into a graph. All jobs
//           of a process compute on one stream of a card, because cuBLAS keeps a workspace and libtorch's
//           allocator a pool for each stream.
//
// Threads   libtorch has a current stream for each thread.
//
// Failure   c10::Error from libtorch.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>

#include "device/device.h"

namespace neap::bridge {

class ComputeStream {
 public:
  /// Of a CPU there is none. libtorch_cuda is loaded for a GPU (torch_cuda.h).
  explicit ComputeStream(c10::Device device);

  /// As the driver knows it; kDefault where there is none.
  [[nodiscard]] device::StreamId id() const { return id_; }

  /// While it lives, the stream is libtorch's current one on this thread. Work on it begins after what the stream
  /// before was given, and that one's next work after what this one was given. Nothing waits on the host.
  class Current {
   public:
    explicit Current(const ComputeStream& stream);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();

   private:
    std::optional<c10::Stream> before_;  // none: nothing changed
  };

 private:
  std::optional<c10::Stream> stream_;
  device::StreamId id_ = device::StreamId::kDefault;
};

}  // namespace neap::bridge
