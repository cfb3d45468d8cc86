// The network between ranks: an alpha-beta model of rings, where the slowest hop decides.
//
// All machines have the same number of ranks, with adjacent numbers. A ring of n ranks passes data
// n - 1 times for an all-gather or reduce-scatter, and twice as often for an all-reduce. Each pass
// takes the latency of the slowest hop, plus the sent bytes divided by its throughput. A group with
// g ranks per machine uses g of the machine's network ports; other groups along the same axis use
// the others.
//
// Threads   values and stateless functions.
// Failure   none.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/job/job.h"
#include "step/counting/counting_ops.h"

namespace neap::plan {

/// A connection between two ranks.
struct Hop {
  double bytes = 0;    ///< per second, each way
  double latency = 0;  ///< seconds until the first byte arrives
};

struct Network {
  Hop within, between;          ///< within a machine; between machines
  double start = 0;             ///< seconds to start a collective
  std::int64_t node_ranks = 0;  ///< ranks per machine; 0: all
  [[nodiscard]] std::int64_t node_of(std::int64_t rank) const {
    return node_ranks > 0 ? rank / node_ranks : 0;
  }
};

/// NCCL over NVLink, and 400 Gb/s per GPU between machines; or MPI.
[[nodiscard]] Network default_network(bool cuda);
/// With the job's machines, and bandwidths that its keys set.
[[nodiscard]] Network network_of(const spec::Job& job, const Network& device);

/// `group` is in ascending order.
[[nodiscard]] bool on_one_machine(const Network& network, const std::vector<std::int64_t>& group);
/// Rates of a collective over `group`, in ascending order.
[[nodiscard]] step::PeerRates group_rates(const Network& network,
                                          const std::vector<std::int64_t>& group);
/// Rates along an axis: those of its slowest group.
[[nodiscard]] step::PeerRates axis_rates(const Network& network, const spec::Mesh& mesh,
                                         spec::Axis axis);
/// Time for each rank of a stage to send `bytes` to the same rank of the next stage; the slowest
/// pair decides.
[[nodiscard]] double transfer_seconds(const Network& network, const spec::Mesh& mesh,
                                      std::int64_t stage, double bytes);

}  // namespace neap::plan
