#include "bridge/device_context.h"

#include <ATen/Parallel.h>

#include "bridge/torch_cuda.h"
#include "device/cuda/cuda_device.h"
#include "device/host/host_device.h"
#include "plan/tags.h"

namespace neap::bridge {
namespace {

// Only where it changes something: libtorch also forgets the kernels that it has compiled.
void set_threads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

}  // namespace

plan::DeviceChoice choose_run_device(const spec::DeviceConfig& config) {
  plan::CudaGpus gpus;
  if (config.kind != "host") gpus = {torch_cuda().devices, torch_cuda().reason};
  return value_or_throw(plan::choose_device(config, gpus, plan::Purpose::kRun));
}

DeviceContext::DeviceContext(const spec::Job& job, const plan::DeviceChoice& choice)
    : threads_(static_cast<int>(choice.target.threads)), attention_{job.trainer.deterministic} {
  if (choice.target.cuda) {
    torch_ = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job.device.ordinal));
    device::CudaOptions options;
    options.ordinal = static_cast<int>(job.device.ordinal);
    options.capacity = choice.target.capacity;
    device_ = value_or_throw(device::make_cuda_device(options));
  } else {
    device::HostOptions options;
    options.capacity = choice.target.capacity;
    options.granularity = choice.target.granularity;
    device_ = value_or_throw(device::make_host_device(options));
  }
  if (plan::compute_dtype(job, choice.target) == spec::Dtype::kBfloat16) dtype_ = at::kBFloat16;
}

DeviceContext::Entered::Entered(const DeviceContext& context)
    : threads_before_(at::get_num_threads()) {
  set_threads(context.threads_);
}

DeviceContext::Entered::~Entered() {
  set_threads(threads_before_);
}

}  // namespace neap::bridge
