// Measures how long a process has waited for others, excluding time in which it was itself stopped.
//
// Threads   one at a time.
#pragma once

#include <algorithm>
#include <chrono>

namespace neap::parallel {

/// Call look() at least once a second. A longer gap means that this process did not run (SIGSTOP,
/// Ctrl-Z, a suspended machine). The other ranks were not late during it, so it does not count.
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
  static constexpr Seconds kLongestGap{2};  // more than a second, for busy machines
  Clock::time_point looked_;
  Seconds waited_{0};
};

}  // namespace neap::parallel
