// The throughput of a device and its links. Times are computed from it and from counted work.
#pragma once

#include <cstdint>

namespace neap::step {

/// Throughput of kernels per second. Zeros mean that no time is counted.
struct KernelRates {
  double half_flops = 0;         ///< matrix products of 16-bit elements
  double single_flops = 0;       ///< matrix products of wider elements
  double bytes = 0;              ///< of memory, reads plus writes
  double operation_seconds = 0;  ///< fixed time of an operation, in addition to its traffic
  double issue_seconds = 0;      ///< on a GPU: host time to launch an operation
  /// Fixed time of a matrix product, in addition to arithmetic, traffic and operation_seconds.
  double product_start_seconds = 0;
  double fp8_flops = 0;  ///< matrix products of 8-bit elements; where the device has them
};

/// Throughput between ranks. Zeros mean that no time is counted.
struct PeerRates {
  double bytes = 0;    ///< per second, to and from a rank
  double latency = 0;  ///< fixed time of a collective
  double round = 0;    ///< additional time per pass over all ranks
};
/// Bytes that each rank sends in a ring all-gather or reduce-scatter of a tensor.
[[nodiscard]] inline double gathered_bytes(std::int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  return (n - 1) / n * bytes;
}
/// Time of a collective in which each rank sends `sent` bytes.
[[nodiscard]] inline double peer_seconds(const PeerRates& rates, double sent, double rounds) {
  return rates.bytes > 0 ? rates.latency + rounds * rates.round + sent / rates.bytes : 0;
}

}  // namespace neap::step
