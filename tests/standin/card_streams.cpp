// What a card does with memory, and the streams and events that it is done on.
#include <chrono>
#include <cstring>

#include "card.h"

namespace neap::standin {

int Card::copy(std::uint64_t to, std::uint64_t from, std::size_t size, bool to_device,
               bool from_device) {
  std::lock_guard lock(mutex_);
  if (size == 0) return kSuccess;
  if (to_device && !reachable(to, size, ~std::uint64_t{0})) return kIllegalAddress;
  if (from_device && !reachable(from, size, ~std::uint64_t{0})) return kIllegalAddress;
  std::memmove(pointer(to), pointer(from), size);
  return kSuccess;
}

int Card::fill(std::uint64_t at, std::uint8_t value, std::size_t size, int device) {
  std::lock_guard lock(mutex_);
  if (!reachable(at, size, std::uint64_t{1} << device)) return kIllegalAddress;
  std::memset(pointer(at), value, size);
  return kSuccess;
}

int Card::register_host(std::uint64_t at, std::size_t size) {
  std::lock_guard lock(mutex_);
  if (at == 0 || size == 0) return kInvalidValue;
  auto next = registered_.lower_bound(at);
  if (next != registered_.end() && next->first < at + size) return kHostAlreadyRegistered;
  if (next != registered_.begin()) {
    --next;
    if (next->first + next->second > at) return kHostAlreadyRegistered;
  }
  registered_[at] = size;
  return kSuccess;
}

int Card::unregister_host(std::uint64_t at) {
  std::lock_guard lock(mutex_);
  return registered_.erase(at) == 1 ? kSuccess : kHostNotRegistered;
}

int Card::make_stream(std::uint64_t* stream) {
  std::lock_guard lock(mutex_);
  if (stream == nullptr) return kInvalidValue;
  *stream = next_id_++;
  streams_.insert(*stream);
  return kSuccess;
}

int Card::destroy_stream(std::uint64_t stream) {
  std::lock_guard lock(mutex_);
  return streams_.erase(stream) == 1 ? kSuccess : kInvalidHandle;
}

int Card::check_stream(std::uint64_t stream) {
  std::lock_guard lock(mutex_);
  return stream <= 2 || streams_.count(stream) == 1 ? kSuccess : kInvalidHandle;
}

int Card::make_event(std::uint64_t* event) {
  std::lock_guard lock(mutex_);
  if (event == nullptr) return kInvalidValue;
  *event = next_id_++;
  events_[*event] = 0;
  return kSuccess;
}

int Card::destroy_event(std::uint64_t event) {
  std::lock_guard lock(mutex_);
  return events_.erase(event) == 1 ? kSuccess : kInvalidHandle;
}

int Card::record_event(std::uint64_t event) {
  std::lock_guard lock(mutex_);
  const auto it = events_.find(event);
  if (it == events_.end()) return kInvalidHandle;
  it->second =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return kSuccess;
}

int Card::event_time(std::uint64_t event, double* seconds) {
  std::lock_guard lock(mutex_);
  const auto it = events_.find(event);
  if (it == events_.end()) return kInvalidHandle;
  *seconds = it->second;
  return kSuccess;
}

}  // namespace neap::standin
