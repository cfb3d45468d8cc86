// Collectives of several tensors as NCCL calls on a stream.
//
// Tensors   contiguous, on this rank's GPU.
// Threads   one at a time for a communicator; a call returns before its work is done.
// Failure   NCCL's result: kNcclSuccess or an error.
// Cost      that of NCCL's calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/nccl_api.h"

namespace neap::parallel {

/// A short-lived value. Its arguments must outlive it.
class NcclCalls {
 public:
  /// Elements of each rank's part, in the order of ranks.
  using Counts = std::vector<std::int64_t>;
  NcclCalls(const NcclApi& api, NcclComm comm, int rank, CudaStream stream)
      : api_(api), comm_(comm), rank_(rank), stream_(stream) {}

  int all_reduce(const at::Tensor& t, Reduce op) const;
  /// This rank's part of `t` becomes that of the sum. The others are undefined.
  int reduce_scatter(const at::Tensor& t, const Counts& counts) const;
  /// `mine` is this rank's part. It may alias its place in `whole`.
  int all_gather(const at::Tensor& mine, const at::Tensor& whole, const Counts& counts) const;
  int broadcast(const at::Tensor& t, int root) const;
  int send(const at::Tensor& t, int to) const;
  int receive(const at::Tensor& t, int from) const;

  /// Groups calls into one NCCL operation. calls(next) passes each result to `next`; the first
  /// error is returned. The group is closed even after an error.
  template <class Calls>
  int as_one(const Calls& calls) const {
    int result = api_.group_start();
    if (result != kNcclSuccess) return result;
    calls([&](const auto& call) {
      if (result == kNcclSuccess) result = call();
    });
    const int ended = api_.group_end();
    return result != kNcclSuccess ? result : ended;
  }

  [[nodiscard]] static bool alike(const Counts& counts);
  /// Calls visit(part, its rank) for each part that is not empty.
  template <class Visit>
  static void by_rank(const at::Tensor& t, const Counts& counts, const Visit& visit) {
    std::int64_t first = 0;
    for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
      const std::int64_t n = counts[static_cast<std::size_t>(r)];
      if (n > 0) visit(t.narrow(0, first, n), r);
      first += n;
    }
  }

 private:
  template <class Call>
  int grouped(const at::Tensor& t, const Counts& counts, const Call& call) const {
    return as_one([&](const auto& next) {
      by_rank(t, counts,
              [&](const at::Tensor& part, int root) { next([&] { return call(part, root); }); });
    });
  }

  const NcclApi& api_;
  NcclComm comm_;
  int rank_;
  CudaStream stream_;
};

}  // namespace neap::parallel
