// Which of a call's requests to a service are to be sent, and how often each has failed.
//
// Threads   one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/status.h"

namespace neap::reward {

class RequestQueue {
 public:
  RequestQueue(std::size_t requests, std::int64_t retries)
      : failures_(requests), open_(requests), retries_(retries) {
    for (std::size_t i = 0; i < requests; ++i) waiting_.push_back(i);
  }
  [[nodiscard]] std::optional<std::size_t> next() {
    if (waiting_.empty()) return std::nullopt;
    const std::size_t first = waiting_.front();
    waiting_.pop_front();
    return first;
  }
  void done() { --open_; }
  /// Sends it again; a failure where it has been sent often enough.
  [[nodiscard]] Status failed(std::size_t request, const Status& why) {
    if (++failures_[request] <= retries_) {
      waiting_.push_front(request);
      return {};
    }
    return {why.code(),
            format("{} (attempt {} of {})", why.message(), failures_[request], retries_ + 1)};
  }
  [[nodiscard]] bool finished() const { return open_ == 0; }

 private:
  std::vector<std::int64_t> failures_;
  std::deque<std::size_t> waiting_;
  std::size_t open_;
  std::int64_t retries_;
};

/// Something that answers requests in JSON with replies in JSON.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;
  /// Takes a reply; a failure sends the request again.
  using Accept = std::function<Status(std::size_t request, std::string_view reply)>;
  /// Sends all, several at once, until each is accepted or one has failed too often.
  [[nodiscard]] virtual Status run(const std::vector<std::string>& requests,
                                   const Accept& accept) = 0;
};

/// A reply is not read beyond this.
constexpr std::size_t kMaxReplyBytes = std::size_t{64} << 20;

}  // namespace neap::reward
