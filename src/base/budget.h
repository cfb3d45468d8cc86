// Counts one piece of work on untrusted input against its ReadLimits: steps, bytes of memory, and
// processor time.
//
// Threads   one at a time. A Budget outlives the objects made with it.
// Failure   the `Fail` function of the Budget throws what its module throws; containers keep their
//           contents.
// Cost      an addition and a comparison; the clock is read at every 64th tick().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>
#include <type_traits>

#include "base/read_limits.h"

namespace neap {

/// Processor time of the calling thread.
[[nodiscard]] inline double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Budget {
 public:
  /// Always throws. `what`: limit_text(), the reason.
  using Fail = void (*)(std::string_view what);

  /// `limits` outlives the Budget; `read`: bytes that its allowances count.
  Budget(const ReadLimits& limits, std::uint64_t read, Fail fail)
      : limits_(&limits),
        read_(read),
        fail_(fail),
        steps_left_(static_cast<std::int64_t>(limits.steps.of(read))),
        bytes_left_(static_cast<std::size_t>(limits.memory.of(read))),
        seconds_(limits.seconds.of(read)) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void spend(std::size_t steps) {
    steps_left_ -= static_cast<std::int64_t>(steps);
    if (steps_left_ < 0) end(Excess::kSteps);
  }
  /// Counts the steps of reading `bytes` of text.
  void read(std::size_t bytes) { spend(1 + bytes / 64); }
  /// Counts memory, and the steps of filling it.
  void take(std::size_t bytes) {
    spend(1 + bytes / 256);
    if (bytes > bytes_left_) end(Excess::kMemory);
    bytes_left_ -= bytes;
  }
  void give_back(std::size_t bytes) noexcept { bytes_left_ += bytes; }
  /// Counts one piece of work without steps of its own.
  void tick() {
    if (++ticks_ % kTicks == 0) look_at_clock();
  }
  /// Restarts the limit of seconds.
  void restart_clock() { ticks_ = 0; }

 private:
  static constexpr std::uint64_t kTicks = 64;
  [[noreturn]] void end(Excess excess) const {
    fail_(limit_text(*limits_, excess, read_));
    std::abort();
  }
  void look_at_clock() {
    const double seconds = processor_seconds();
    if (ticks_ == kTicks) started_ = seconds;
    if (seconds_ > 0 && seconds - started_ > seconds_) end(Excess::kSeconds);
  }

  const ReadLimits* limits_;
  std::uint64_t read_;
  Fail fail_;
  std::int64_t steps_left_;
  std::size_t bytes_left_;
  double seconds_;  // 0: no limit
  std::uint64_t ticks_ = 0;
  double started_ = 0;
};

/// An allocator whose memory counts against a Budget.
template <class T>
class Counted {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  Counted(Budget& budget) : budget_(&budget) {}  // NOLINT(google-explicit-constructor)
  template <class U>
  Counted(const Counted<U>& other) : budget_(&other.budget()) {}  // NOLINT
  [[nodiscard]] T* allocate(std::size_t n) {
    budget_->take(bytes(n));
    try {
      return std::allocator<T>().allocate(n);
    } catch (...) {
      budget_->give_back(bytes(n));
      throw;
    }
  }
  void deallocate(T* p, std::size_t n) noexcept {
    std::allocator<T>().deallocate(p, n);
    budget_->give_back(bytes(n));
  }
  [[nodiscard]] Budget& budget() const { return *budget_; }
  friend bool operator==(const Counted& a, const Counted& b) { return a.budget_ == b.budget_; }

 private:
  static constexpr std::size_t kHeaderBytes = 16;  // per allocation, of malloc
  static std::size_t bytes(std::size_t n) { return n * sizeof(T) + kHeaderBytes; }
  Budget* budget_;
};

}  // namespace neap
