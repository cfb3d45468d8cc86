// The device that `neap plan` plans for, which may not exist here, and the assumptions about it.
//
// Order     a GPU that is requested by name; else the one that device.kind and device.ordinal
//           select. Without a GPU, a job with device.kind "auto" is planned for this machine's CPU,
//           where it would run. A model that is too large to train on a CPU is planned for a GPU in
//           bfloat16.
// Sizes     capacities are what the job may allocate, as device.memory. For a card's nominal size,
//           the driver's share and the context are subtracted.
// Threads   any.
// Failure   kInvalidArgument for an unknown GPU, sizes that leave nothing, and a type that the GPU
//           lacks.
// Cost      0.1 s for the context of a GPU of this machine.
#pragma once

#include <string>
#include <vector>

#include "plan/rates/device_choice.h"

namespace neap::plan {

/// The command's options, which override the job's keys. Empty and zero mean not given.
struct DeviceQuestion {
  std::string gpu{};   ///< a name of the catalog
  Bytes capacity{};    ///< replaces device.memory
  Bytes card{};        ///< nominal size of a card
  Bytes host{};        ///< memory of the card's machine
  bool model = false;  ///< a model is planned instead of a job: use a GPU
};

struct PlannedDevice {
  DeviceChoice choice;
  std::string where;    ///< "the RTX 4090 in bfloat16"
  std::string assumed;  ///< assumptions, and how to change them; empty: none
  /// How `choice.target.capacity` follows from a card's size; empty: it was given.
  std::string sizes;
  std::vector<std::string> keys;  ///< keys of the job that a run on the device also needs
  Bytes context;  ///< CUDA context, which nvidia-smi shows in addition to the plan; zero: no GPU
  Bytes host;     ///< host memory for offloaded data: this machine's, or as requested
  bool host_is_asked = false;

  /// The first line of every answer and error.
  [[nodiscard]] std::string heading() const;
  /// Including the context, as nvidia-smi shows it.
  [[nodiscard]] Bytes on_card(Bytes planned) const { return planned + context; }
  /// Whether the plan needs more host memory than that.
  [[nodiscard]] bool lacks_host(const MemoryPlan& plan) const {
    return context > Bytes() && plan.host_bytes > host;
  }
  /// The device as JSON fields (docs/json.md).
  [[nodiscard]] Json to_json(const spec::Job& job) const;
  /// One or two lines with the plan's device and host memory.
  [[nodiscard]] std::string totals(const MemoryPlan& plan) const;
};

/// The caller must assign `keys` to the job, which does not have them yet.
[[nodiscard]] Result<PlannedDevice> device_to_plan_for(const spec::Job& job,
                                                       const DeviceQuestion& asked,
                                                       const CudaGpus& gpus);

}  // namespace neap::plan
