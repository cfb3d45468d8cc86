// A device's primary context, made current for one scope.
#pragma once

#include <unistd.h>

#include "device/cuda/driver.h"

namespace neap::device::cuda {

struct Card {
  const Driver* driver = nullptr;
  int device = 0;
  Context context = nullptr;
  pid_t process = 0;  ///< that made the context
};

/// Cost: two driver calls without a system call. Failed scopes leave the thread's context alone.
class ContextScope {
 public:
  explicit ContextScope(const Card& card) : card_(card) {
    if (::getpid() != card.process) {
      status_ = Status(ErrorCode::kUnsupported,
                       "CUDA cannot be used in a forked child; start the child with exec, or fork "
                       "before the first use");
      return;
    }
    status_ = to_status(*card.driver, card.driver->context_push(card.context),
                        "making the CUDA context current");
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    Context popped = nullptr;
    if (status_.ok()) (void)card_.driver->context_pop(&popped);
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Card& card_;
  Status status_;
};

}  // namespace neap::device::cuda
