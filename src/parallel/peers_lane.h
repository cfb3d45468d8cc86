// The communication queue of a GPU: a stream of its own, and the operations started on it, by
// numbers.
//
// Threads   one at a time; libtorch's current stream is that thread's.
// Failure   c10::Error from libtorch.
// Cost      two timed events per begin().
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "base/bytes.h"
#include "bridge/peer_use.h"
#include "bridge/streams.h"

namespace neap::parallel {

class PeersLane {
 public:
  explicit PeersLane(c10::Device device) : device_(device) {}

  /// Enqueues work that starts after earlier work of the current stream. Pass the number to
  /// wait_for().
  std::int64_t begin(Bytes bytes, const std::function<void(const c10::Stream&)>& enqueue);
  /// Later work of the current stream waits for operation `number` and everything before it.
  void wait_for(std::int64_t number);
  /// Waits as wait_for() for every operation. False if there is none.
  bool wait_for_all();
  /// Adds up times. Call it after the current stream has passed wait_for_all(), when nothing is
  /// running.
  void count_all();
  /// Forgets all operations, whether or not they succeeded.
  void clear();
  [[nodiscard]] bridge::PeerUse take_use() { return std::exchange(use_, {}); }

 private:
  struct Begun {
    c10::Event started;
    std::optional<c10::Event> ended;
    std::optional<c10::Event> computed;  // recorded on the stream that waits for it
    Bytes bytes;
  };
  [[nodiscard]] c10::Stream current() const { return bridge::current_stream(device_); }
  [[nodiscard]] c10::Event timed_event(const c10::Stream& stream) const;
  void count(const Begun& begun);
  void forget_used();

  c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::deque<Begun> begun_;  // since the last clear(), in ascending order
  std::int64_t first_ = 1;
  std::optional<c10::Event> joined_;  // on the current stream, before it waited for all
  bridge::PeerUse use_;
};

}  // namespace neap::parallel
