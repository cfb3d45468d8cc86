#include "parallel/run_collectively.h"

#include <exception>
#include <vector>

#include "base/format.h"

namespace neap::parallel {

Status status_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const Error& e) {
    return e.status();
  } catch (const std::exception& e) {
    return {ErrorCode::kInternal, e.what()};
  }
}

void run_collectively(Communicator& ranks, const std::function<void()>& work) {
  if (ranks.alone()) return work();
  const Status status = status_of(work);
  std::vector<double> codes(static_cast<std::size_t>(ranks.size()));
  codes[static_cast<std::size_t>(ranks.rank())] = static_cast<double>(status.code());
  ranks.sum(codes);
  for (std::size_t r = 0; r < codes.size(); ++r) {
    if (codes[r] == 0) continue;
    if (static_cast<int>(r) == ranks.rank()) throw CollectiveError(status, true);
    throw CollectiveError(
        Status(static_cast<ErrorCode>(static_cast<int>(codes[r])), format("Rank {} failed", r)),
        false);
  }
}

}  // namespace neap::parallel
