// What ranks do with each other's tensors, as calls of NCCL on a stream.
//
// Tensors   contiguous, on this rank's card.
// Threads   one at a time for a communicator; a call returns before its work is done.
// Failure   NCCL's result, kNcclSuccess or an error.
// Cost      that of NCCL's own calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/nccl_api.h"

namespace neap::parallel {

/// A value, made for each use. What it refers to outlives it.
class NcclCalls {
 public:
  /// Elements of each rank's part, one part behind another.
  using Counts = std::vector<std::int64_t>;
  NcclCalls(const NcclApi& api, NcclComm comm, int rank, CudaStream stream)
      : api_(api), comm_(comm), rank_(rank), stream_(stream) {}

  int all_reduce(const at::Tensor& t, Reduce op) const;
  /// Each rank's part of `t` becomes that of the sum; the others are undefined then, or as they were.
  int reduce_scatter(const at::Tensor& t, const Counts& counts) const;
  /// `mine`: this rank's part, which may be in its place in `whole`.
  int all_gather(const at::Tensor& mine, const at::Tensor& whole, const Counts& counts) const;
  int broadcast(const at::Tensor& t, int root) const;
  int send(const at::Tensor& t, int to) const;
  int receive(const at::Tensor& t, int from) const;

  /// Calls that NCCL runs as one; the first error. calls(next) gives each of them to next. A group that was begun is
  /// ended whatever happens.
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
  /// visit(part, its rank) of those that have elements.
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
