#include "bridge/compute_stream.h"

#include <cstdint>
#include <exception>
#include <map>
#include <mutex>

#include "base/log.h"
#include "bridge/streams.h"

namespace neap::bridge {
namespace {

c10::Stream stream_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const c10::Stream stream = pool_stream(device, StreamPriority::kUsual);
  return streams.emplace(device.index(), stream).first->second;
}

}  // namespace

ComputeStream::ComputeStream(c10::Device device) {
  if (device.is_cpu()) return;
  stream_ = stream_of(device);
  const void* const handle = native_handle(*stream_);
  id_ = static_cast<device::StreamId>(reinterpret_cast<std::uintptr_t>(handle));
}

ComputeStream::Current::Current(const ComputeStream& stream) {
  if (!stream.stream_) return;
  device_.reset_device(stream.stream_->device());
  const c10::Stream before = current_stream(stream.stream_->device());
  if (before == *stream.stream_) return;
  order(before, *stream.stream_);
  before_ = make_current(*stream.stream_);
}

ComputeStream::Current::~Current() {
  if (!before_) return;
  const c10::Stream mine = make_current(*before_);
  try {
    order(mine, *before_);
  } catch (const std::exception& e) {  // the GPU has failed; its next user gets the error
    log::warn(e.what());
  }
}

}  // namespace neap::bridge
