// What a device and its links reach: of these and of counted work follow seconds.
#pragma once

namespace neap::step {

/// What kernels reach in a second. With zeros no seconds are counted.
struct KernelRates {
  double half_flops = 0;         ///< matrix products of 16-bit elements
  double single_flops = 0;       ///< of wider ones
  double bytes = 0;              ///< of memory, read and written
  double operation_seconds = 0;  ///< what each takes besides its traffic
  double issue_seconds = 0;      ///< of a GPU: what the program takes to start an operation
  double product_start_seconds =
      0;  ///< what a product takes besides its arithmetic and traffic, and operation_seconds
};

/// Of ranks that work together. With zeros no seconds are counted.
struct PeerRates {
  double bytes = 0;    ///< a second, to and from a rank
  double latency = 0;  ///< seconds that a collective takes at least
  double round = 0;    ///< and for each time that it passes all ranks
};
/// Seconds of a collective in which each rank sends so many bytes.
[[nodiscard]] inline double peer_seconds(const PeerRates& rates, double sent, double rounds) {
  return rates.bytes > 0 ? rates.latency + rounds * rates.round + sent / rates.bytes : 0;
}

}  // namespace neap::step
