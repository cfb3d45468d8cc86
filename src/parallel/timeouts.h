// Timeouts for late ranks, shared by all communicators.
//
// Threads   one at a time.
#pragma once

#include <chrono>
#include <string>

#include "base/format.h"
#include "base/status.h"

namespace neap::parallel {

/// Limits how often a working rank shows life: several times per timeout instead of in every call.
/// Construction counts as the first time.
class LifePace {
 public:
  explicit LifePace(double timeout_seconds) : between_(timeout_seconds / kSignsInATimeout) {}
  /// Whether a sign of life is due. If so, it counts as given.
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

/// `who` lists the missing ranks, such as "1, 3". It is empty if they are not known.
[[nodiscard]] inline Status wait_timed_out(int rank, double seconds, const char* call,
                                           const std::string& who) {
  const char* const kind = who.find(',') == std::string::npos ? "rank" : "ranks";
  return {ErrorCode::kTimeout,
          format("Rank {} waited {:.0f} s in {} for {} (actor_rollout_ref.nccl_timeout)", rank,
                 seconds, call, who.empty() ? "the other ranks" : format("{} {}", kind, who))};
}

}  // namespace neap::parallel
