// Chooses the device of a job. Plans and the run use the same choice.
//
// Threads   any.
// Failure   kInvalidArgument for a GPU that does not exist; kUnsupported if CUDA is requested but
//           cannot be used.
// Cost      0.1 s for a GPU's context.
#pragma once

#include <string>

#include "plan/results/memory_plan.h"

namespace neap::plan {

struct DeviceChoice {
  Target target;     ///< capacity: device.memory, or what is free now, less kernels that load later
  std::string name;  ///< for messages: "NVIDIA H200", "host memory"
};

/// GPUs that the program can use; `reason` says why there are none.
struct CudaGpus {
  int count = 0;
  std::string reason;
};
/// The GPUs that the driver lists.
[[nodiscard]] CudaGpus driver_gpus();

enum class Purpose {
  kPlan,  ///< device.kind = "cuda" can be planned without a GPU
  kRun,
};
[[nodiscard]] Result<DeviceChoice> choose_device(const spec::DeviceConfig& config,
                                                 const CudaGpus& gpus, Purpose purpose);

/// The cores that this process may use: OMP_NUM_THREADS, else the physical cores of its affinity
/// mask within its cgroup's quota. The run uses that many threads, because kernels' scratch memory
/// depends on it. Fails if OMP_NUM_THREADS is far larger than the machine.
[[nodiscard]] Result<std::int64_t> kernel_threads();

/// Compute capability 90 is 9.0. Why a GPU does not run Neap's kernels; empty: it does.
[[nodiscard]] std::string no_own_kernels_on(int architecture);
/// Why a GPU has no products of fp8; empty: it has.
[[nodiscard]] std::string no_fp8_on(int architecture);
/// Sets what depends on it.
void use_architecture(Target& target, int architecture);
/// Whether the target runs Neap's kernels. `loaded`: whether they load on this machine.
/// kUnsupported if they do not run and the job requires them.
[[nodiscard]] Status settle_own_kernels(const spec::DeviceConfig& config, const Status& loaded,
                                        Target& target);

/// Free memory of the configured GPU, now.
[[nodiscard]] Result<Bytes> free_memory(const spec::DeviceConfig& config);

}  // namespace neap::plan
