// Work that every rank does for itself and that fails for all or for none: what a user can get wrong
// (a missing file, a plan that does not fit) is told once and ends every rank with the same exit
// code, instead of leaving some in a collective that never comes.
#pragma once

#include <functional>

#include "base/status.h"
#include "parallel/communicator.h"

namespace neap::parallel {

/// What run_collectively() throws on every rank: the status of the lowest rank that failed.
class CollectiveError : public Error {
 public:
  CollectiveError(Status status, bool mine) : Error(std::move(status)), mine_(mine) {}
  /// It failed on this rank, which is the one to say so.
  [[nodiscard]] bool mine() const { return mine_; }

 private:
  bool mine_;
};

/// Runs `work`; what it failed with.
[[nodiscard]] Status status_of(const std::function<void()>& work);

/// Runs `work`, which makes no collective call, on every rank. One rank alone: exceptions pass as
/// they are.
void run_collectively(Communicator& ranks, const std::function<void()>& work);

}  // namespace neap::parallel
