// The work of a stream as an executable graph, which a later launch repeats with the same arguments.
//
// Threads   one at a time. A capture is thread-local: other threads may call the driver meanwhile.
// Failure   a Status; the stream is then no longer capturing.
// Cost      some microseconds per kernel to capture, and about 1.2 us per kernel to run.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "device/cuda/driver.h"

namespace neap::device::cuda {

class ExecutableGraph {
 public:
  /// Runs work(), whose kernels on `stream` are not executed but become the graph. The context must be current.
  [[nodiscard]] static Result<ExecutableGraph> capture(const Driver& driver, Stream stream,
                                                       const std::function<Status()>& work);
  ExecutableGraph(ExecutableGraph&& other) noexcept
      : driver_(other.driver_),
        graph_(std::exchange(other.graph_, nullptr)),
        nodes_(other.nodes_) {}
  ExecutableGraph& operator=(ExecutableGraph&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(graph_, other.graph_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }
  /// Its last launch must have ended.
  ~ExecutableGraph();

  [[nodiscard]] Status launch(Stream stream) const;
  [[nodiscard]] std::size_t nodes() const { return nodes_; }

 private:
  ExecutableGraph(const Driver& driver, GraphExec graph, std::size_t nodes)
      : driver_(&driver), graph_(graph), nodes_(nodes) {}

  const Driver* driver_;
  GraphExec graph_;
  std::size_t nodes_;
};

}  // namespace neap::device::cuda
