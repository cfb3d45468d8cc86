// Streams of a GPU as libtorch has them, without its CUDA headers.
//
// Threads   libtorch has a current stream for each thread.
// Failure   c10::Error from libtorch. libtorch_cuda is loaded (torch_cuda.h).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace neap::bridge {

enum class StreamPriority : std::uint8_t { kUsual, kHigh };

/// libtorch's current one, which tensors are made on.
[[nodiscard]] c10::Stream current_stream(c10::Device device);
/// Of libtorch's pool.
[[nodiscard]] c10::Stream pool_stream(c10::Device device, StreamPriority priority);
/// As the driver knows it.
[[nodiscard]] void* native_handle(const c10::Stream& stream);
/// What `later` is given from now on begins after what `earlier` was given so far. Nothing waits on the host.
void order(const c10::Stream& earlier, const c10::Stream& later);

}  // namespace neap::bridge
