// The sections [device] and [memory]: a job's device, and what may be offloaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "spec/types/measures.h"
#include "spec/types/task.h"

namespace neap::spec {

struct DeviceConfig {
  std::string kind = "auto";  ///< auto: cuda if a GPU is present, else cpu
  Bytes memory{0};            ///< limit per rank; 0: all memory of the device
  std::int64_t ordinal = 0;
  std::string dtype = "auto";         ///< auto: bfloat16 on cuda, float32 on the CPU
  std::string kernels = "auto";       ///< auto: Neap's CUDA kernels if the GPU runs them
  std::string linear_dtype = "auto";  ///< of products with matrices of blocks; auto: dtype
  [[nodiscard]] bool is_cpu() const { return kind == "cpu"; }
  [[nodiscard]] bool multiplies_in_fp8() const { return linear_dtype == "fp8"; }
  [[nodiscard]] bool takes_own_kernels() const { return kernels != "libtorch"; }
};

struct MemoryConfig {
  Residency offload = Residency::kAuto;  ///< what may be offloaded between phases
  UpdateChoice optimizer_offload;        ///< where optimizer states are while a model trains
  bool overlap = true;      ///< copies between device and host overlap with computation
  Bytes host_budget{0};     ///< for offloaded data; 0: all free host memory
  std::string alloc_conf;   ///< PYTORCH_CUDA_ALLOC_CONF's format, for pools of temporaries
  std::string nvme_path;    ///< folder for NVMe offload; empty: the system's temporary folder
  Bytes nvme_bandwidth{0};  ///< bytes per second, for plans; 0: the default of disk_rate()
  /// Measures that the plan may take so that the job fits.
  std::vector<Measure> allow = default_measures();
  [[nodiscard]] bool allows(Measure measure) const;
  /// Bytes per second that plans assume.
  [[nodiscard]] double disk_rate() const;
};

}  // namespace neap::spec
