// A bounded queue of events with many writers and one reader.
//
// Model     a place of the ring has a sequence number that says whose turn it is: the writer of ticket p
//           when it equals p, the reader of it when it equals p + 1.
// Threads   push(), has_room() and pushed(): any, at once. pop() and popped(): one.
// Cost      an atomic exchange an event; no locks, no heap memory after construction.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "trace/event.h"

namespace neap::trace {

class EventRing {
 public:
  enum class Push : std::uint8_t { kDone, kDoneQuarter, kFull };

  /// `capacity` is rounded up to a power of two.
  explicit EventRing(std::size_t capacity)
      : slots_(std::bit_ceil(capacity)), mask_(slots_.size() - 1) {
    for (std::size_t i = 0; i < slots_.size(); ++i)
      slots_[i].sequence.store(i, std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t capacity() const { return slots_.size(); }

  /// kDoneQuarter once in a quarter of the places.
  [[nodiscard]] Push push(const Event& event, std::uint64_t time_ns) {
    std::uint64_t ticket = head_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[ticket & mask_];
      const std::uint64_t turn = slot.sequence.load(std::memory_order_acquire);
      if (turn < ticket) return Push::kFull;
      if (turn > ticket) {
        ticket = head_.load(std::memory_order_relaxed);
      } else if (head_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_relaxed)) {
        slot.event = event;
        slot.event.time_ns = time_ns;
        slot.sequence.store(ticket + 1, std::memory_order_release);
        return (ticket & (mask_ >> 2)) == 0 ? Push::kDoneQuarter : Push::kDone;
      }
    }
  }
  [[nodiscard]] bool has_room() const {
    const std::uint64_t at = head_.load(std::memory_order_relaxed);
    return slots_[at & mask_].sequence.load(std::memory_order_acquire) >= at;
  }
  /// Tickets that writers have taken; the last events may still be on their way into their places.
  [[nodiscard]] std::uint64_t pushed(std::memory_order order = std::memory_order_acquire) const {
    return head_.load(order);
  }

  /// False where the next ticket's event is not there yet.
  [[nodiscard]] bool pop(Event& out) {
    Slot& slot = slots_[tail_ & mask_];
    if (slot.sequence.load(std::memory_order_acquire) != tail_ + 1) return false;
    out = slot.event;
    slot.sequence.store(tail_ + mask_ + 1, std::memory_order_release);
    ++tail_;
    return true;
  }
  [[nodiscard]] std::uint64_t popped() const { return tail_; }

 private:
  struct Slot {
    std::atomic<std::uint64_t> sequence{0};
    Event event;
  };

  std::vector<Slot> slots_;
  std::uint64_t mask_;
  alignas(64) std::atomic<std::uint64_t> head_{0};  // next ticket
  alignas(64) std::uint64_t tail_ = 0;              // the reader's
};

}  // namespace neap::trace
