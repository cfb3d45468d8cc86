#include "device/cuda/graph.h"

namespace neap::device::cuda {

Result<ExecutableGraph> ExecutableGraph::capture(const Driver& driver, Stream stream,
                                                 const std::function<Status()>& work) {
  NEAP_TRY(to_status(driver, driver.capture_begin(stream, kCaptureThreadLocal),
                     "beginning to capture a graph"));
  const Status worked = work();
  Graph graph = nullptr;
  const Status ended = to_status(driver, driver.capture_end(stream, &graph), "capturing a graph");
  const auto destroy = [&driver](Graph g) {
    if (g != nullptr) (void)driver.graph_destroy(g);
  };
  if (!worked.ok() || !ended.ok()) {
    destroy(graph);
    return worked.ok() ? ended : worked;
  }
  std::size_t nodes = 0;
  GraphExec exec = nullptr;
  Status made =
      to_status(driver, driver.graph_nodes(graph, nullptr, &nodes), "counting a graph's nodes");
  if (made.ok())
    made = to_status(driver, driver.graph_instantiate(&exec, graph, 0), "instantiating a graph");
  destroy(graph);
  NEAP_TRY(made);
  ExecutableGraph out(driver, exec, nodes);
  NEAP_TRY(to_status(driver, driver.graph_upload(exec, stream), "uploading a graph"));
  return out;
}

ExecutableGraph::~ExecutableGraph() {
  if (graph_ != nullptr) (void)driver_->graph_exec_destroy(graph_);
}

Status ExecutableGraph::launch(Stream stream) const {
  return to_status(*driver_, driver_->graph_launch(graph_, stream), "launching a graph");
}

}  // namespace neap::device::cuda
