// Access to libtorch's GPU streams without CUDA headers.
//
// Threads   libtorch has a current stream per thread; the default one if the thread has not set
//           one.
// Failure   c10::Error from libtorch. libtorch_cuda must be loaded (torch_cuda.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

namespace neap::bridge {

enum class StreamPriority : std::uint8_t { kUsual, kHigh };

/// libtorch's current stream, on which tensors are created.
[[nodiscard]] c10::Stream current_stream(c10::Device device);
/// Sets this thread's current stream. Returns the previous one.
c10::Stream make_current(const c10::Stream& stream);
/// A stream of libtorch's pool.
[[nodiscard]] c10::Stream pool_stream(c10::Device device, StreamPriority priority);
/// The driver's handle.
[[nodiscard]] void* native_handle(const c10::Stream& stream);
/// Later work of `later` starts after the work of `earlier` so far. The host does not wait.
void order(const c10::Stream& earlier, const c10::Stream& later);

/// The current streams of a thread, for the devices of some tensors. Helper threads use it: their
/// work starts after the thread's earlier work, and before its later work.
class StreamsOf {
 public:
  /// Takes the calling thread's streams.
  explicit StreamsOf(const std::vector<at::Tensor>& tensors);

  /// Makes them current on this thread while it lives.
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
  std::vector<c10::Stream> streams_;  // one per device; none for a CPU
};

}  // namespace neap::bridge
