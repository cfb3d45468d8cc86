// The device of a job and what may leave it, as its file says it: [device] and [memory].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "spec/measures.h"
#include "spec/task.h"

namespace neap::spec {

struct DeviceConfig {
  std::string kind = "auto";  ///< auto: cuda if a GPU is there, else cpu
  Bytes memory{0};            ///< ceiling of one rank; 0: all that the device has
  std::int64_t ordinal = 0;
  std::string dtype = "auto";  ///< auto: bfloat16 compute on cuda, float32 on the CPU
  [[nodiscard]] bool is_cpu() const { return kind == "cpu"; }
};

struct MemoryConfig {
  Residency offload = Residency::kAuto;  ///< what leaves the device between phases
  UpdateChoice optimizer_offload;        ///< where optimizer states are while a model trains
  bool overlap = true;      ///< copies between the device and the host run while a phase computes
  Bytes host_budget{0};     ///< for copies of what left the device; 0: what the machine has free
  std::string alloc_conf;   ///< as PYTORCH_CUDA_ALLOC_CONF, for the transient pools
  std::string nvme_path;    ///< for what is offloaded to disk; empty: the system's temporary folder
  Bytes nvme_bandwidth{0};  ///< for plans: bytes a second; 0: as disk_rate() says
  std::vector<Measure> allow = default_measures();  ///< what the plan may do so that the job fits
  [[nodiscard]] bool allows(Measure measure) const;
  /// Bytes a second that plans count.
  [[nodiscard]] double disk_rate() const;
};

}  // namespace neap::spec
