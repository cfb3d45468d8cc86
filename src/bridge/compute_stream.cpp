#include "bridge/compute_stream.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <exception>
#include <map>
#include <mutex>

#include "base/log.h"

namespace neap::bridge {
namespace {

c10::impl::VirtualGuardImpl guard_of(c10::DeviceType type) {
  return c10::impl::VirtualGuardImpl(type);
}

c10::Stream stream_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const c10::Stream stream = guard_of(device.type()).getStreamFromGlobalPool(device);
  return streams.emplace(device.index(), stream).first->second;
}

// What `later` is given from now on begins after what `earlier` was given so far.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  // An event's calls go back to the device that was current: of another card that makes a context, half a GiB.
  const c10::DeviceGuard guard(earlier.device());
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace

ComputeStream::ComputeStream(c10::Device device) {
  if (device.is_cpu()) return;
  stream_ = stream_of(device);
  const void* const handle = guard_of(device.type()).getStreamNativeHandle(*stream_);
  id_ = static_cast<device::StreamId>(reinterpret_cast<std::uintptr_t>(handle));
}

ComputeStream::Current::Current(const ComputeStream& stream) {
  if (!stream.stream_) return;
  const c10::impl::VirtualGuardImpl guard = guard_of(stream.stream_->device_type());
  const c10::Stream before = guard.getStream(stream.stream_->device());
  if (before == *stream.stream_) return;
  order(before, *stream.stream_);
  before_ = guard.exchangeStream(*stream.stream_);
}

ComputeStream::Current::~Current() {
  if (!before_) return;
  const c10::Stream mine = guard_of(before_->device_type()).exchangeStream(*before_);
  try {
    order(mine, *before_);
  } catch (const std::exception& e) {  // the card has failed; whoever uses it next is told so
    log::warn(e.what());
  }
}

}  // namespace neap::bridge
