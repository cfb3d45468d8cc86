// What a GPU's ranks do together while it computes: a stream of its own, and what was begun on it, by numbers.
//
// Threads   one at a time; libtorch's current stream is that thread's.
// Failure   c10::Error from libtorch.
// Cost      two timed events for each begin.
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

  /// Its stream begins what `enqueue` gives it when the current one has come here. The number is for wait_for().
  std::int64_t begin(Bytes bytes, const std::function<void(const c10::Stream&)>& enqueue);
  /// What the current stream is given from now on begins when what has the number is done, and everything before it.
  void wait_for(std::int64_t number);
  /// The same for everything that was begun. False: there is nothing.
  bool wait_for_all();
  /// After the current stream has come to wait_for_all(): nothing is under way any more.
  void count_all();
  /// Forgets all of it, whatever has become of it.
  void clear();
  [[nodiscard]] bridge::PeerUse take_use() { return std::exchange(use_, {}); }

 private:
  struct Begun {
    c10::Event started;
    std::optional<c10::Event> ended;
    std::optional<c10::Event> computed;  // by what waits for it
    Bytes bytes;
  };
  [[nodiscard]] c10::Stream current() const { return bridge::current_stream(device_); }
  [[nodiscard]] c10::Event timed_event(const c10::Stream& stream) const;
  void count(const Begun& begun);
  void forget_used();

  c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::deque<Begun> begun_;  // since the last clear(), by ascending numbers
  std::int64_t first_ = 1;
  std::optional<c10::Event> joined_;  // the current stream, before it waited for all
  bridge::PeerUse use_;
};

}  // namespace neap::parallel
