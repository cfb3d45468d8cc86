// Ctrl-C as a request: the first one is remembered, the second one ends the process at once.
#pragma once

#include <csignal>

namespace neap::rlhf {

/// Catches SIGINT and SIGTERM while it lives. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();
  [[nodiscard]] static bool requested();

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

}  // namespace neap::rlhf
