// Runs work that every rank does separately and that must fail on all ranks or on none. A user's
// error (a missing file, a plan that does not fit) is reported once and ends every rank with the
// same exit code. Otherwise some ranks would wait in a collective that the failed rank never joins.
//
// Threads   one at a time, as the communicator.
// Failure   CollectiveError on every rank.
// Cost      one small collective.
#pragma once

#include <functional>

#include "base/status.h"
#include "parallel/communicator.h"

namespace neap::parallel {

/// Thrown by run_collectively() on every rank. It has the status of the lowest rank that failed.
class CollectiveError : public Error {
 public:
  CollectiveError(Status status, bool mine) : Error(std::move(status)), mine_(mine) {}
  /// True on the rank that failed and should report it.
  [[nodiscard]] bool mine() const { return mine_; }

 private:
  bool mine_;
};

/// Runs `work` and returns the status that it failed with.
[[nodiscard]] Status status_of(const std::function<void()>& work);

/// Runs `work`, which must not make collective calls, on every rank. With one rank, exceptions pass
/// through unchanged.
void run_collectively(Communicator& ranks, const std::function<void()>& work);

}  // namespace neap::parallel
