#include "bridge/run_device.h"

#include <ATen/Parallel.h>

#include "bridge/torch_cuda.h"
#include "device/cuda/cuda_device.h"
#include "device/host/host_device.h"
#include "plan/tags.h"

namespace neap::bridge {

plan::DeviceChoice choose_run_device(const spec::DeviceConfig& config) {
  plan::CudaGpus gpus;
  if (config.kind != "host") gpus = {torch_cuda().devices, torch_cuda().reason};
  return value_or_throw(plan::choose_device(config, gpus, plan::Purpose::kRun));
}

RunDevice open_device(const spec::Job& job, const plan::DeviceChoice& choice) {
  at::set_num_threads(static_cast<int>(choice.target.threads));
  RunDevice out;
  if (choice.target.cuda) {
    out.torch = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job.device.ordinal));
    device::CudaOptions options;
    options.ordinal = static_cast<int>(job.device.ordinal);
    options.capacity = choice.target.capacity;
    out.device = value_or_throw(device::make_cuda_device(options));
  } else {
    device::HostOptions options;
    options.capacity = choice.target.capacity;
    options.granularity = choice.target.granularity;
    out.device = value_or_throw(device::make_host_device(options));
  }
  if (plan::compute_dtype(job, choice.target) == spec::Dtype::kBfloat16) out.dtype = at::kBFloat16;
  return out;
}

}  // namespace neap::bridge
