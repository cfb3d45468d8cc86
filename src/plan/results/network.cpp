#include "plan/results/network.h"

#include <algorithm>

namespace neap::plan {
namespace {

// The smallest number of ranks of a group that share a machine; 0: all ranks are on one.
std::int64_t fewest_together(const Network& network, const std::vector<std::int64_t>& group) {
  std::int64_t fewest = std::ssize(group);
  for (auto from = group.begin(); from != group.end();) {
    const std::int64_t node = network.node_of(*from);
    const auto to = std::find_if(from, group.end(),
                                 [&](std::int64_t rank) { return network.node_of(rank) != node; });
    fewest = std::min<std::int64_t>(fewest, to - from);
    from = to;
  }
  return fewest == std::ssize(group) ? 0 : fewest;
}

bool is_slower(const step::PeerRates& a, const step::PeerRates& b) {
  return a.bytes < b.bytes || (a.bytes == b.bytes && a.round > b.round);
}

}  // namespace

// Within a machine: NCCL's rings between two H100s with NVLink; a collective of two ranks takes 30
// us. Between machines: nine tenths of a 400 Gb/s port. Hop latencies are those of NCCL (hwLat in
// graph/tuning.cc, protocol "simple"). For MPI: between processes of a machine, and 10 Gb/s.
Network default_network(bool cuda) {
  if (cuda) return {{250e9, 3.4e-6}, {45e9, 14e-6}, 23.2e-6, 0};
  return {{2e9, 0}, {1.1e9, 30e-6}, 20e-6, 0};
}

Network network_of(const spec::Job& job, const Network& device) {
  Network out = device;
  out.node_ranks = job.node_ranks();
  const auto rate = [](Bytes key, double& to) {
    if (!key.is_zero()) to = static_cast<double>(key.count());
  };
  rate(job.parallel.intra_node_bandwidth, out.within.bytes);
  rate(job.parallel.inter_node_bandwidth, out.between.bytes);
  return out;
}

bool on_one_machine(const Network& network, const std::vector<std::int64_t>& group) {
  return fewest_together(network, group) == 0;
}

step::PeerRates group_rates(const Network& network, const std::vector<std::int64_t>& group) {
  const auto passes = static_cast<double>(group.size()) - 1;
  const std::int64_t together = fewest_together(network, group);
  if (together == 0) return {network.within.bytes, network.start, passes * network.within.latency};
  // A ring visits all ranks of a machine before it leaves it.
  const double ports = static_cast<double>(together) * network.between.bytes;
  const double bytes = together > 1 ? std::min(network.within.bytes, ports) : ports;
  return {bytes, network.start, passes * std::max(network.within.latency, network.between.latency)};
}

step::PeerRates axis_rates(const Network& network, const spec::Mesh& mesh, spec::Axis axis) {
  step::PeerRates slowest = group_rates(network, mesh.line(0, axis));
  if (mesh.size(axis) == 1) return slowest;
  for (std::int64_t rank = 1; rank < mesh.ranks(); ++rank) {
    if (mesh.coordinate(rank, axis) != 0) continue;
    const step::PeerRates rates = group_rates(network, mesh.line(rank, axis));
    if (is_slower(rates, slowest)) slowest = rates;
  }
  return slowest;
}

double transfer_seconds(const Network& network, const spec::Mesh& mesh, std::int64_t stage,
                        double bytes) {
  const std::int64_t stages = mesh.size(spec::Axis::kPipe), ranks = mesh.ranks() / stages;
  const std::int64_t next = (stage + 1) % stages;
  const auto of = [&](const Hop& hop) { return hop.latency + bytes / hop.bytes; };
  double seconds = 0;
  for (std::int64_t i = 0; i < ranks; ++i) {
    const bool together = network.node_of(stage * ranks + i) == network.node_of(next * ranks + i);
    seconds = std::max(seconds, of(together ? network.within : network.between));
  }
  return network.start + seconds;
}

}  // namespace neap::plan
