// What counted operations cost, and what their costs depend on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "spec/mesh.h"
#include "step/copy_clocks.h"
#include "step/counted_rates.h"
#include "step/cuda_scratch.h"

namespace neap::step {

template <class T>
using OfAxes = std::array<T, spec::kAxes>;
template <class T>
using OfGroups = std::array<T, spec::kGroups>;

/// What kernels' scratch memory and time depend on.
struct KernelProfile {
  bool cuda = false;
  std::int64_t threads = 1;    ///< of the CPU kernels
  bool deterministic = false;  ///< backward passes that repeat their bits on a GPU
  CudaDevice device{};
  KernelRates rates{};
  LinkRates link{};
  LinkRates disk{};                ///< from it, to it, and both
  std::int64_t tensor_ranks = 1;   ///< that divide a model
  std::int64_t context_ranks = 1;  ///< that divide sequences
  OfGroups<PeerRates> peers{};
};

/// What operations cost apart from memory.
struct Work {
  double flops = 0;          ///< of matrix products and attention
  double bytes_moved = 0;    ///< read and written: each operand of each kernel once
  double seconds = 0;        ///< each operation bound by one of the two
  double issue_seconds = 0;  ///< of the program
  double fetched_bytes = 0;  ///< from the host, by copies that run while operations compute
  double stored_bytes = 0;   ///< and to it
  double disk_read = 0, disk_written = 0;  ///< the same from and to a disk
  double wait_seconds = 0;                 ///< for such copies
  double peer_bytes = 0;                   ///< sent to other ranks
  double peer_seconds = 0;                 ///< in collectives, as far as nothing hides them
  OfAxes<double> axis_seconds{};           ///< these, by the axis whose ranks they are of
  /// A GPU works while the program starts the next operations: the slower of both decides.
  [[nodiscard]] double elapsed() const {
    return std::max(seconds, issue_seconds) + wait_seconds + peer_seconds;
  }
};

}  // namespace neap::step
