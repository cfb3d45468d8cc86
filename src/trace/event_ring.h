// A bounded queue of events with many writers and one reader.
//
// Model     Each place of the ring has a sequence number that says who may use it next. If it
//           equals p, the writer of ticket p may. If it equals p + 1, the reader may.
//
// Threads   push(), has_room() and pushed(): any, concurrently. pop() and popped(): one.
//
// Cost      an atomic exchange per event; no locks, and no heap memory after construction.
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

  /// Returns kDoneQuarter each time that a quarter of the ring has been written.
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
  /// Number of tickets that writers have taken. The last events may not be in their places yet.
  [[nodiscard]] std::uint64_t pushed(std::memory_order order = std::memory_order_acquire) const {
    return head_.load(order);
  }

  /// False if the next ticket's event is not there yet.
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
  alignas(64) std::atomic<std::uint64_t> head_{0};  // next ticket for writers
  alignas(64) std::uint64_t tail_ = 0;              // next ticket of the reader
};

}  // namespace neap::trace
