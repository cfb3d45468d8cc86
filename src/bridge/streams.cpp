#include "bridge/streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace neap::bridge {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream pool_stream(c10::Device device, StreamPriority priority) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, priority == StreamPriority::kHigh);
}

c10::Stream make_current(const c10::Stream& stream) {
  return c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
}

void* native_handle(const c10::Stream& stream) {
  return c10::impl::VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream);
}

void order(const c10::Stream& earlier, const c10::Stream& later) {
  // Without the guard, an event's calls switch to the previously current device. If that is another
  // GPU, this creates a context there, which takes half a GiB.
  const c10::DeviceGuard guard(earlier.device());
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

StreamsOf::StreamsOf(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    const c10::Stream stream = current_stream(tensor.device());
    if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
  }
}

StreamsOf::Current::Current(const StreamsOf& streams) {
  for (const c10::Stream& stream : streams.streams_) before_.push_back(make_current(stream));
}

StreamsOf::Current::~Current() {
  for (const c10::Stream& stream : before_) make_current(stream);
}

}  // namespace neap::bridge
