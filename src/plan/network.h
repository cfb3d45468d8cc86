// What joins ranks, and what that costs: an alpha-beta model of rings whose slowest hop decides.
//
// Machines have equally many ranks with neighbouring numbers. A ring of n ranks passes its data n - 1 times for a gather
// or for the parts of a sum, and twice that for sums that all ranks get. Each pass takes the latency of the slowest hop,
// and the bytes that a rank sends take its rate. A group with g ranks in each machine has g of the machine's network
// ports; the other groups along the same axis have the others.
//
// Threads   values and functions without state.   Failure   none.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/job.h"
#include "step/counting_ops.h"

namespace neap::plan {

/// One connection of a rank to another one.
struct Hop {
  double bytes = 0;    ///< a second, each way
  double latency = 0;  ///< seconds until the first of them is there
};

struct Network {
  Hop within, between;          ///< machines
  double start = 0;             ///< seconds to begin a collective
  std::int64_t node_ranks = 0;  ///< of a machine; 0: all
  [[nodiscard]] std::int64_t node_of(std::int64_t rank) const {
    return node_ranks > 0 ? rank / node_ranks : 0;
  }
};

/// Of NCCL over NVLink and 400 Gb/s a GPU between machines, or of MPI.
[[nodiscard]] Network default_network(bool cuda);
/// With the job's machines and what its keys say of their connections.
[[nodiscard]] Network network_of(const spec::Job& job, const Network& device);

/// Of ranks in ascending order.
[[nodiscard]] bool on_one_machine(const Network& network, const std::vector<std::int64_t>& group);
/// Of a collective over `group`, of ranks in ascending order.
[[nodiscard]] step::PeerRates group_rates(const Network& network,
                                          const std::vector<std::int64_t>& group);
/// Along an axis: of the slowest of its groups.
[[nodiscard]] step::PeerRates axis_rates(const Network& network, const spec::Mesh& mesh,
                                         spec::Axis axis);
/// Of so many bytes from every rank of a stage to the same rank of the next one, the slowest of them.
[[nodiscard]] double transfer_seconds(const Network& network, const spec::Mesh& mesh,
                                      std::int64_t stage, double bytes);

}  // namespace neap::plan
