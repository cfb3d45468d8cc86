// The cost of counted operations, and what it depends on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "spec/types/mesh.h"
#include "step/counting/copy_clocks.h"
#include "step/counting/counted_rates.h"
#include "step/counting/cuda_scratch.h"
#include "step/operations/own_kernels.h"

namespace neap::step {

template <class T>
using OfAxes = std::array<T, spec::kAxes>;
template <class T>
using OfGroups = std::array<T, spec::kGroups>;

/// The settings that determine the scratch memory and time of kernels.
struct KernelProfile {
  bool cuda = false;
  std::int64_t threads = 1;    ///< of CPU kernels
  bool deterministic = false;  ///< backward passes on a GPU are bitwise reproducible
  OwnKernels own{};
  bool fp8 = false;     ///< passes over whole sequences multiply in fp8 (step/operations/fp8.h)
  bool graphs = false;  ///< generation decodes in CUDA graphs if it can
  CudaDevice device{};
  KernelRates rates{};
  LinkRates link{};
  LinkRates disk{};                ///< read from disk, write to disk, and both
  std::int64_t tensor_ranks = 1;   ///< tensor-parallel size
  std::int64_t context_ranks = 1;  ///< context-parallel size
  OfGroups<PeerRates> peers{};
};

/// The cost of operations, except memory.
struct Work {
  double flops = 0;          ///< of matrix products and attention
  double bytes_moved = 0;    ///< reads plus writes: each operand of each kernel once
  double seconds = 0;        ///< each operation is bound by one of the two
  double issue_seconds = 0;  ///< host time
  double fetched_bytes = 0;  ///< from the host, by copies that overlap with computation
  double stored_bytes = 0;   ///< to the host, by such copies
  double disk_read = 0, disk_written = 0;  ///< the same from and to a disk
  double wait_seconds = 0;                 ///< exposed time of such copies
  double peer_bytes = 0;                   ///< sent to other ranks
  double peer_seconds = 0;                 ///< exposed time of collectives
  OfAxes<double> axis_seconds{};           ///< peer_seconds by axis
  /// A GPU works while the host launches the next operations, so the slower of both determines the
  /// time.
  [[nodiscard]] double elapsed() const {
    return std::max(seconds, issue_seconds) + wait_seconds + peer_seconds;
  }
};

}  // namespace neap::step
