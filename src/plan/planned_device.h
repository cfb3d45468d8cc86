// The device that `neap plan` plans for, which need not be here, and what is assumed of it.
//
// Order     the GPU that is asked for by name; else the one that device.kind and device.ordinal name here. Without a GPU here
//           a job of device.kind "auto" is planned for this machine's CPU, where it would run, but one whose model nobody
//           trains there for a GPU in bfloat16.
// Sizes     what a job allocates is less than a card has: of a card's size its driver's part and the context are subtracted.
//           A capacity is what the job allocates, as device.memory.
//
// Threads   any.
// Failure   kInvalidArgument for a GPU that does not exist, sizes that leave nothing, and a type that the GPU lacks.
// Cost      0.1 s for the context of a GPU that is here.
#pragma once

#include <string>
#include <vector>

#include "plan/device_choice.h"

namespace neap::plan {

/// The question's options, which come before the job's keys. Empty and zero: not given.
struct DeviceQuestion {
  std::string gpu{};   ///< a name of the catalog
  Bytes capacity{};    ///< in place of device.memory
  Bytes card{};        ///< the size of a card
  Bytes host{};        ///< memory of the card's machine
  bool model = false;  ///< a model, not a job, is planned: for a GPU
};

struct PlannedDevice {
  DeviceChoice choice;
  std::string where;    ///< "the RTX 4090 in bfloat16"
  std::string assumed;  ///< what nobody said, and how to say it; empty: nothing
  std::string
      sizes;  ///< how `choice.target.capacity` comes from a card's size; empty: as it was given
  std::vector<std::string> keys;  ///< of the job, which a run on the device needs, too
  Bytes context;  ///< of CUDA, that nvidia-smi shows in addition to what is planned; zero: no GPU
  Bytes host;     ///< of host memory for copies, what this machine has or was asked for
  bool host_is_asked = false;

  /// The first line of every answer and error says this.
  [[nodiscard]] std::string heading() const;
  /// With the context: what nvidia-smi shows.
  [[nodiscard]] Bytes on_card(Bytes planned) const { return planned + context; }
  /// The plan needs more host memory than that.
  [[nodiscard]] bool lacks_host(const MemoryPlan& plan) const {
    return context > Bytes() && plan.host_bytes > host;
  }
  /// As fields of docs/plan-json.md.
  [[nodiscard]] Json to_json(const spec::Job& job) const;
  /// A line or two: what a plan takes of the device and of its host.
  [[nodiscard]] std::string totals(const MemoryPlan& plan) const;
};

/// `keys` are to be assigned to the job, which has none of them yet.
[[nodiscard]] Result<PlannedDevice> device_to_plan_for(const spec::Job& job,
                                                       const DeviceQuestion& asked,
                                                       const CudaGpus& gpus);

}  // namespace neap::plan
