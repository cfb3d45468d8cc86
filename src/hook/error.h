// The calling thread's last failure, and conversion of a Status to neap_status.
//
// Threads   each thread has its own last failure.
//
// Failure   guarded() lets no exception escape.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "base/status.h"
#include "neap/neap.h"

namespace neap::hook {

/// Stores the failure `status` as the thread's last one and returns its code.
neap_status fail(Status status);
/// The thread's last failure; ok before the first. Valid until the next failure.
[[nodiscard]] const Status& last_failure();

/// Runs `body`, which returns Status, and converts its result for C callers.
template <class Body>
neap_status guarded(Body&& body) noexcept {
  try {
    Status status = std::forward<Body>(body)();
    return status.ok() ? NEAP_OK : fail(std::move(status));
  } catch (const std::bad_alloc&) {
    return fail(Status(ErrorCode::kOutOfHostMemory, "The process is out of memory"));
  } catch (const std::exception& e) {
    return fail(Status(ErrorCode::kInternal, e.what()));
  }
}

}  // namespace neap::hook
