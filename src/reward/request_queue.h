// Decides which of a call's requests to a service are sent and when, and counts the failures of
// each.
//
// Threads   one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/status.h"
#include "spec/types/reward_config.h"

namespace neap::reward {

class RequestQueue {
 public:
  using Clock = std::chrono::steady_clock;

  /// Failures are reported under the name of `config`, which outlives the queue.
  RequestQueue(std::size_t requests, const spec::RewardFunctionConfig& config)
      : failures_(requests), open_(requests), config_(config) {
    for (std::size_t i = 0; i < requests; ++i) waiting_.push_back({i, Clock::time_point()});
  }
  /// Takes the next request whose time has come.
  [[nodiscard]] std::optional<std::size_t> next() {
    const auto now = Clock::now();
    const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const Waiting& each) { return each.not_before <= now; });
    if (at == waiting_.end()) return std::nullopt;
    const std::size_t request = at->request;
    waiting_.erase(at);
    return request;
  }
  /// Time when the next request may be sent; the maximum time if none waits.
  [[nodiscard]] Clock::time_point due() const {
    auto out = Clock::time_point::max();
    for (const Waiting& each : waiting_) out = std::min(out, each.not_before);
    return out;
  }
  void done() { --open_; }
  [[nodiscard]] std::int64_t failures_of(std::size_t request) const { return failures_[request]; }
  /// Sends the request again after `pause`. Returns the failure if that would not help or it was
  /// sent often enough. For each n, the first request that fails for the n-th time is reported.
  [[nodiscard]] std::optional<Status> failed(std::size_t request, const Status& why, bool again,
                                             Clock::duration pause = {}) {
    const std::int64_t attempt = ++failures_[request];
    const std::int64_t most = config_.retries + 1;
    if (!again) return why;
    if (attempt >= most)
      return Status(why.code(), format("{} (attempt {} of {})", why.message(), attempt, most));
    waiting_.insert(waiting_.begin(), {request, Clock::now() + pause});
    if (attempt > told_) {
      told_ = attempt;
      log::warn(format("Reward \"{}\": attempt {} of {} failed: it {}. Sending the request again",
                       config_.metric_name(), attempt, most, why.message()));
    }
    return std::nullopt;
  }
  [[nodiscard]] bool finished() const { return open_ == 0; }

 private:
  struct Waiting {
    std::size_t request;
    Clock::time_point not_before;
  };
  std::vector<std::int64_t> failures_;
  std::vector<Waiting> waiting_;
  std::size_t open_;
  std::int64_t told_ = 0;
  const spec::RewardFunctionConfig& config_;
};

/// Receives the outcome of requests.
class Replies {
 public:
  Replies() = default;
  Replies(const Replies&) = delete;
  Replies& operator=(const Replies&) = delete;
  virtual ~Replies() = default;
  struct Verdict {
    Status status;
    bool again = true;  ///< after a failure: sending the request again may succeed
  };
  [[nodiscard]] virtual Verdict accept(std::size_t request, std::string_view reply) = 0;
  /// The request will not be sent again. A returned failure ends the run; otherwise the other
  /// requests continue.
  [[nodiscard]] virtual Status give_up(std::size_t request, const Status& why) = 0;
};

/// A channel that answers requests in JSON with replies in JSON.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;
  /// Sends all requests, several concurrently, until each is accepted or given up, or until
  /// Setting::stop returns true.
  [[nodiscard]] virtual Status run(const std::vector<std::string>& requests, Replies& replies) = 0;
};

/// Interval at which a transport calls Setting::stop.
constexpr auto kStopPeriod = std::chrono::milliseconds(100);

}  // namespace neap::reward
