#include "bridge/device_context.h"

#include <ATen/Parallel.h>

#include "base/format.h"
#include "base/log.h"
#include "bridge/torch_cuda.h"
#include "bridge/torch_dtypes.h"
#include "device/cuda/cuda_device.h"
#include "device/host/host_device.h"
#include "kernels/card_kernels.h"
#include "plan/counting/tags.h"
#include "plan/results/model_roles.h"

namespace neap::bridge {
namespace {

const char* name_of(at::Float32MatmulPrecision precision) {
  switch (precision) {
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
    default:
      return "highest";
  }
}

at::Device torch_device(const spec::DeviceConfig& config, const plan::DeviceChoice& choice) {
  if (!choice.target.cuda) return at::kCPU;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(config.ordinal)};
}

}  // namespace

Status load_own_kernels(int ordinal) {
  NEAP_TRY_ASSIGN(kernels::CardKernels* const card, kernels::CardKernels::of(ordinal));
  return card->load_all();
}

TorchSettings TorchSettings::now() {
  const at::Context& torch = at::globalContext();
  return {at::get_num_threads(), torch.deterministicAlgorithms(),
          torch.deterministicAlgorithmsWarnOnly(), torch.float32MatmulPrecision()};
}

void TorchSettings::install() const {
  const TorchSettings before = now();
  at::Context& torch = at::globalContext();
  // Setting the same number would make libtorch forget its compiled kernels.
  if (before.threads != threads) at::set_num_threads(threads);
  torch.setDeterministicAlgorithms(deterministic, warn_only);
  // Setting the same precision would overwrite settings of single libraries.
  if (before.float32 != float32) torch.setFloat32MatmulPrecision(name_of(float32));
}

plan::DeviceChoice choose_run_device(const spec::DeviceConfig& config) {
  plan::CudaGpus gpus;
  if (!config.is_cpu()) gpus = {torch_cuda().devices, torch_cuda().reason};
  plan::DeviceChoice choice =
      value_or_throw(plan::choose_device(config, gpus, plan::Purpose::kRun));
  plan::Target& target = choice.target;
  Status loaded;
  if (target.own_kernels && config.takes_own_kernels())
    loaded = load_own_kernels(static_cast<int>(config.ordinal));
  throw_if_error(plan::settle_own_kernels(config, loaded, target));
  if (config.takes_own_kernels() && !target.no_own_kernels.empty())
    log::info(format("libtorch's kernels run: {}", target.no_own_kernels));
  return choice;
}

DeviceContext::DeviceContext(const spec::Job& job, const plan::DeviceChoice& choice)
    : torch_(torch_device(job.device, choice)),
      stream_(torch_),
      settings_(TorchSettings::now()),
      kernels_{job.trainer.deterministic, plan::own_kernels(job, choice.target),
               job.device.multiplies_in_fp8()} {
  settings_.threads = static_cast<int>(choice.target.threads);
  if (choice.target.cuda) {
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
  dtype_ = to_aten(plan::compute_dtype(job, choice.target));
}

DeviceContext::Entered::Entered(const DeviceContext& context)
    : before_(TorchSettings::now()), stream_(context.stream_) {
  context.settings_.install();
}

DeviceContext::Entered::~Entered() {
  before_.install();
}

}  // namespace neap::bridge
