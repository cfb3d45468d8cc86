// Streams of a GPU as libtorch has them, without its CUDA headers.
//
// Threads   libtorch has a current stream for each thread: the default one, where the thread chose none.
// Failure   c10::Error from libtorch. libtorch_cuda is loaded (torch_cuda.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

namespace neap::bridge {

enum class StreamPriority : std::uint8_t { kUsual, kHigh };

/// libtorch's current one, which tensors are made on.
[[nodiscard]] c10::Stream current_stream(c10::Device device);
/// On this thread. Returns the one before.
c10::Stream make_current(const c10::Stream& stream);
/// Of libtorch's pool.
[[nodiscard]] c10::Stream pool_stream(c10::Device device, StreamPriority priority);
/// As the driver knows it.
[[nodiscard]] void* native_handle(const c10::Stream& stream);
/// What `later` is given from now on begins after what `earlier` was given so far. Nothing waits on the host.
void order(const c10::Stream& earlier, const c10::Stream& later);

/// A thread's streams of the devices of tensors, for threads that help it: their work on the tensors begins after what it
/// was given, and before what it is given next.
class StreamsOf {
 public:
  /// Of the calling thread.
  explicit StreamsOf(const std::vector<at::Tensor>& tensors);

  /// While it lives, they are current on this thread.
  class Current {
   public:
    explicit Current(const StreamsOf& streams);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();

   private:
    std::vector<c10::Stream> before_;
  };

 private:
  std::vector<c10::Stream> streams_;  // one a device; a CPU has none
};

}  // namespace neap::bridge
