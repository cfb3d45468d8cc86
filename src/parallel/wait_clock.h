// How long a process has waited for others, without the time in which it was stopped itself.
//
// Threads   one at a time.
#pragma once

#include <algorithm>
#include <chrono>

namespace neap::parallel {

/// A wait looks at it at least once a second. A longer gap means that this process did not run (SIGSTOP, Ctrl-Z, a machine
/// that was suspended). The other ranks were not late in that time, so it does not count.
class WaitClock {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  explicit WaitClock(Clock::time_point now = Clock::now()) : looked_(now) {}
  void restart(Clock::time_point now = Clock::now()) {
    waited_ = Seconds(0);
    looked_ = now;
  }
  /// The time since the last restart.
  [[nodiscard]] Seconds look(Clock::time_point now = Clock::now()) {
    waited_ += std::min(Seconds(now - looked_), kLongestGap);
    looked_ = now;
    return waited_;
  }

 private:
  static constexpr Seconds kLongestGap{2};  // busy machines need more than the second
  Clock::time_point looked_;
  Seconds waited_{0};
};

}  // namespace neap::parallel
