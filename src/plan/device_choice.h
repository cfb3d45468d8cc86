// The device that a job runs on, chosen once: plans are made for it and the run opens it.
//
// Threads   any.
// Failure   kInvalidArgument for a GPU that does not exist, kUnsupported if CUDA is requested and
//           cannot be used.
// Cost      0.1 s for the context of a GPU.
#pragma once

#include <string>

#include "plan/memory_plan.h"

namespace neap::plan {

struct DeviceChoice {
  Target target;     ///< capacity: device.memory, or what is free now
  std::string name;  ///< for people: "NVIDIA H200", "host memory"
};

/// GPUs that the program can compute on; `reason` says why there are none.
struct CudaGpus {
  int count = 0;
  std::string reason;
};
/// The GPUs that the driver lists.
[[nodiscard]] CudaGpus driver_gpus();

enum class Purpose {
  kPlan,  ///< device.kind = "cuda" can be planned for where there is no GPU
  kRun,
};
[[nodiscard]] Result<DeviceChoice> choose_device(const spec::DeviceConfig& config,
                                                 const CudaGpus& gpus, Purpose purpose);

/// Cores that this process may use: OMP_NUM_THREADS, else the physical cores of its affinity mask
/// within its cgroup's quota. Kernels' scratch memory depends on it, so the run sets its threads to it.
/// Fails where OMP_NUM_THREADS is far more than the machine has.
[[nodiscard]] Result<std::int64_t> kernel_threads();

/// Of the GPU that the configuration names, now.
[[nodiscard]] Result<Bytes> free_memory(const spec::DeviceConfig& config);

}  // namespace neap::plan
