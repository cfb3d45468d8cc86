// Sums and gathers between GPUs of one machine by their copy engines: products keep all multiprocessors, where NCCL's
// kernels take some of them for as long as data are under way.
//
// Model     Each rank has slots for messages of the others (parallel/exchange.h), in memory that these have mapped. A
//           message is a copy into the receiver's slot; then its number is written to a counter in shared host memory,
//           which the receiver's stream waits for. Sums are made by kernels of the receiver. The program waits for
//           nothing.
// Bits      Sums of float32 and float64 are those of the ranks in ascending order.
//
// Threads   one at a time, but for end_waits().
// Failure   Error, of the driver. A rank that does not come makes streams wait until end_waits().
// Memory    plan::copy_lane_bytes() of the GPU, outside the arena.
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
  /// Every rank of `group` calls it. None where a rank cannot reach another one's memory, and why in `problem`.
  [[nodiscard]] static std::unique_ptr<CopyLane> open(Communicator& group, c10::Device device,
                                                      std::string& problem);
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;
  virtual ~CopyLane() = default;

  using Counts = std::vector<std::int64_t>;
  // Tensors are on the device, contiguous and of one dimension. They belong to the call until `stream` has come to its
  // end.
  /// Every rank's `t` becomes the sum of all.
  virtual void sum(const at::Tensor& t, const c10::Stream& stream) = 0;
  /// This rank's part of `t` becomes the sum of all ranks'; the other parts are undefined.
  virtual void sum_parts(const at::Tensor& t, const Counts& counts, const c10::Stream& stream) = 0;
  /// `whole` becomes `mine` of all ranks, one after another.
  virtual void gather(const at::Tensor& mine, const at::Tensor& whole, const Counts& counts,
                      const c10::Stream& stream) = 0;

  /// Streams wait for no rank any more; what they make is worthless. For any thread; returns when they have ended, or
  /// after a few seconds.
  virtual void end_waits() noexcept = 0;

 protected:
  CopyLane() = default;
};

}  // namespace neap::parallel
