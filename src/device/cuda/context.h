// A device's primary context, made current for one scope.
#pragma once

#include <sys/types.h>

#include "base/process.h"
#include "device/cuda/driver.h"

namespace neap::device::cuda {

struct Card {
  const Driver* driver = nullptr;
  int device = 0;
  Context context = nullptr;
  pid_t process = 0;  ///< that created the context
};

/// Fails in a forked child, where CUDA contexts are invalid.
inline Status check_process(const Card& card) {
  if (current_process() == card.process) return {};
  return {ErrorCode::kUnsupported,
          "CUDA cannot be used in a forked child; start the child with exec, or fork before the "
          "first use"};
}

/// Finds the GPU with this number. Creates no context.
inline Result<Card> find_card(const Driver& driver, int ordinal) {
  Card card;
  card.driver = &driver;
  card.process = current_process();
  NEAP_TRY(to_status(driver, driver.device_get(&card.device, ordinal), "opening the GPU"));
  return card;
}
/// Retains the GPU's primary context until the process ends: libtorch and other code may use it.
inline Status retain_context(Card& card) {
  return to_status(*card.driver, card.driver->context_retain(&card.context, card.device),
                   "opening the GPU's context");
}

/// Loads the driver, and retains the context of the GPU with this number.
inline Result<Card> open_card(int ordinal) {
  NEAP_TRY_ASSIGN(const Driver* const driver, load_driver());
  NEAP_TRY_ASSIGN(Card card, find_card(*driver, ordinal));
  NEAP_TRY(retain_context(card));
  return card;
}

/// Cost: two driver calls without a system call. If it fails, the thread's context is unchanged.
class ContextScope {
 public:
  explicit ContextScope(const Card& card) : card_(card), status_(check_process(card)) {
    if (!status_.ok()) return;
    status_ = to_status(*card_.driver, card_.driver->context_push(card_.context),
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
