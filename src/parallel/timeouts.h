// What communicators do about ranks that are late, whatever carries their messages.
//
// Threads   one at a time.
#pragma once

#include <chrono>
#include <string>

#include "base/format.h"
#include "base/status.h"

namespace neap::parallel {

/// How often a rank that works shows it: several times in a timeout, not at every call. Its begin counts as shown.
class LifePace {
 public:
  explicit LifePace(double timeout_seconds) : between_(timeout_seconds / kSignsInATimeout) {}
  /// Whether the next one is due; then it counts as shown.
  [[nodiscard]] bool due() {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < between_) return false;
    shown_ = now;
    return true;
  }

 private:
  static constexpr double kSignsInATimeout = 8;
  std::chrono::duration<double> between_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

/// `who`: the ranks that did not come, as "1, 3"; empty where it is not known.
[[nodiscard]] inline Status wait_timed_out(int rank, double seconds, const char* call,
                                           const std::string& who) {
  const char* const kind = who.find(',') == std::string::npos ? "rank" : "ranks";
  return {ErrorCode::kTimeout,
          format("Rank {} waited {:.0f} s in {} for {} (actor_rollout_ref.nccl_timeout)", rank,
                 seconds, call, who.empty() ? "the other ranks" : format("{} {}", kind, who))};
}

}  // namespace neap::parallel
