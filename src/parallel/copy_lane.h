// All-reduce, reduce-scatter and all-gather between the GPUs of one machine through their copy
// engines. Unlike NCCL's kernels, copies take no multiprocessor away from matrix products.
//
// Model     Each rank has buffers for messages of the other ranks (parallel/exchange.h), in memory
//           that those have mapped. A message is a copy into the receiver's buffer; then its number
//           is written to a counter in shared host memory. The receiver's stream waits for that
//           counter. Kernels of the receiver add up sums. The host never waits.
// Bits      Sums of float32 and float64 add ranks in ascending order.
//
// Threads   one at a time, except for end_waits().
// Failure   Error of the driver. Streams wait for a missing rank until end_waits().
// Memory    plan::copy_lane_bytes() of device memory, outside the arena.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace neap::parallel {

class Communicator;

class CopyLane {
 public:
  /// Every rank of `group` calls it. Returns null, with the reason in `problem`, if a rank cannot
  /// map another rank's memory.
  [[nodiscard]] static std::unique_ptr<CopyLane> open(Communicator& group, c10::Device device,
                                                      std::string& problem);
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;
  virtual ~CopyLane() = default;

  using Counts = std::vector<std::int64_t>;
  // In all calls, tensors are contiguous, on the device and of one dimension. The caller must not
  // touch them until `stream` has reached this point.
  /// All-reduce of `t`.
  virtual void sum(const at::Tensor& t, const c10::Stream& stream) = 0;
  /// Reduce-scatter: this rank's part of `t` becomes the sum over ranks. The other parts are
  /// undefined.
  virtual void sum_parts(const at::Tensor& t, const Counts& counts, const c10::Stream& stream) = 0;
  /// All-gather: `whole` becomes `mine` of all ranks, in the order of ranks.
  virtual void gather(const at::Tensor& mine, const at::Tensor& whole, const Counts& counts,
                      const c10::Stream& stream) = 0;

  /// Makes streams stop waiting for other ranks; their results are invalid. Any thread may call it.
  /// It returns when the streams have ended, or after a few seconds.
  virtual void end_waits() noexcept = 0;

 protected:
  CopyLane() = default;
};

}  // namespace neap::parallel
