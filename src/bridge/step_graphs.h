// CUDA graphs of decoding steps.
//
// Model     The first step with a key runs as usual, which loads its kernels. The second is captured, and from then on
//           the graph is launched. All steps share one region for their tensors, on one stream. If a capture fails,
//           the steps run as usual.
// Threads   one.
// Failure   neap::Error, c10::Error from libtorch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "bridge/torch_cuda_scratch.h"
#include "step/counting/scratch_places.h"

namespace neap::bridge {

class StepGraphs {
 public:
  /// `scratch`: the bytes on a GPU that a plan or step::ScratchSink has counted.
  static std::unique_ptr<StepGraphs> make(at::Tensor scratch);
  virtual ~StepGraphs() = default;

  /// Runs body() on the current stream of this thread, or its graph. A body reads and writes the same addresses for the
  /// same key, frees what it allocates, and neither waits for the device nor copies from or to the host.
  virtual void run(const step::GraphKey& key, const std::function<void()>& body) = 0;

  /// Number of graphs, and of their nodes.
  [[nodiscard]] virtual std::size_t graphs() const = 0;
  [[nodiscard]] virtual std::size_t nodes() const = 0;
  /// The bytes of the region that were used.
  [[nodiscard]] virtual std::uint64_t extent() const = 0;
};

}  // namespace neap::bridge
