#include "bridge/streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace neap::bridge {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream pool_stream(c10::Device device, StreamPriority priority) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, priority == StreamPriority::kHigh);
}

void* native_handle(const c10::Stream& stream) {
  return c10::impl::VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream);
}

void order(const c10::Stream& earlier, const c10::Stream& later) {
  // An event's calls go back to the device that was current: of another card that makes a context, half a GiB.
  const c10::DeviceGuard guard(earlier.device());
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace neap::bridge
