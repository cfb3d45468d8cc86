// Objects that the process has once per GPU.
//
// Threads   any.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"

namespace neap::kernels {

/// The process's T for the GPU with this number. open(ordinal) makes it at the first call, and again
/// at the next call if it fails.
template <class T>
[[nodiscard]] Result<T*> per_card(int ordinal, Result<std::unique_ptr<T>> (*open)(int)) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<T>> cards;
  const std::lock_guard lock(mutex);
  std::unique_ptr<T>& card = cards[ordinal];
  if (card == nullptr) {
    NEAP_TRY_ASSIGN(card, open(ordinal));
  }
  return card.get();
}

}  // namespace neap::kernels
