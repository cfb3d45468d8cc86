#include "plan/rates/planned_device.h"

#include <algorithm>

#include "arena/host_memory.h"
#include "base/format.h"
#include "plan/rates/gpu_catalog.h"
#include "plan/results/host_share.h"
#include "plan/results/model_roles.h"
#include "spec/model/layout.h"
#include "spec/types/model_files.h"

namespace neap::plan {
namespace {

// A larger model would train on a CPU for weeks.
constexpr double kMostHostParameters = 1e9;

// Zero if the model cannot be read; a later reader reports the error.
double parameters_of(const spec::Job& job) {
  const auto files = job.model_files(job.main_model(), job.actor_model.path);
  if (!files.ok()) return 0;
  const auto shape = job.configs.architecture(files->base);
  if (!shape.ok()) return 0;
  return static_cast<double>(
      spec::total_elements(spec::flat_layout(*shape, spec::Head::kLanguageModel)));
}

// Whether a job without a device is planned for a GPU although the machine has none. `why` gets the
// reason.
bool is_for_gpu(const spec::Job& job, const DeviceQuestion& asked, std::string& why) {
  if (asked.model) {
    why = "this machine has no GPU";
    return true;
  }
  const double parameters = parameters_of(job);
  if (parameters <= kMostHostParameters) return false;
  why = format(
      "this machine has no GPU, and a model of {:.3g} billion parameters is not trained on a CPU",
      parameters / 1e9);
  return true;
}

Result<DeviceChoice> choose(const spec::Job& job, const DeviceQuestion& asked, const CudaGpus& gpus,
                            std::string& assumed) {
  if (!asked.gpu.empty()) return gpu_by_name(asked.gpu, job.device.memory);
  spec::DeviceConfig config = job.device;
  if (!config.is_cpu() && gpus.count == 0) {
    std::string why = "this machine has no GPU";
    if (config.kind == "auto" && is_for_gpu(job, asked, why)) config.kind = "cuda";
    assumed =
        config.kind == "cuda"
            ? format(
                  "assumed, with an H200's rates, because {}; --gpu NAME plans for a "
                  "card, device.kind=cpu for this CPU",
                  why)
            : format("assumed, because {}; --gpu NAME or device.kind=cuda plans for one", why);
  }
  return choose_device(config, gpus, Purpose::kPlan);
}

// Computes the capacity of a card, and describes how.
Status use_card(const DeviceQuestion& asked, PlannedDevice& device) {
  Target& target = device.choice.target;
  const Card* const card = find_card(asked.gpu);
  if (!target.cuda) {
    target.capacity = asked.card;
    return {};
  }
  const Bytes free = card != nullptr ? std::min(asked.card, card->free) : free_of_size(asked.card);
  if (free <= kCudaContext)
    return {ErrorCode::kInvalidArgument,
            format("CUDA's context takes {} of a card: {} leave nothing for a job", kCudaContext,
                   asked.card)};
  target.capacity = free - kCudaContext;
  const std::string of = free == asked.card ? format("{}", free)
                         : card != nullptr
                             ? format("{} that are free on the {}", free, card->title)
                             : format("{} that every card of {} has free", free, asked.card);
  device.sizes =
      format("{} to plan with: {}, less {} for CUDA's context", target.capacity, of, kCudaContext);
  return {};
}

void use_host(const DeviceQuestion& asked, bool is_here, PlannedDevice& device) {
  Target& target = device.choice.target;
  if (!target.cuda) return;
  device.host_is_asked = !asked.host.is_zero();
  device.host = for_copies(device.host_is_asked ? asked.host : arena::available_host_memory());
  if (device.host_is_asked) {
    target.host_memory = device.host;
  } else if (!is_here) {
    target.host_memory = Bytes();  // another machine's memory is unknown
  }
}

// A GPU without bfloat16 computes in float32.
Status use_type(const spec::Job& job, const Card* card, PlannedDevice& device) {
  spec::Job typed = job;
  if (card != nullptr && !card->bfloat16()) {
    if (job.device.dtype == "bfloat16")
      return {ErrorCode::kInvalidArgument,
              format("The {} has no bfloat16 (compute capability 7.5): plan with "
                     "device.dtype=float32, which a run there needs, too",
                     card->title)};
    if (job.device.dtype == "auto") {
      device.keys.emplace_back("device.dtype=float32");
      typed.device.dtype = "float32";
    }
  }
  device.where = format("the {} in {}", device.choice.name,
                        to_string(compute_dtype(typed, device.choice.target)));
  if (!device.keys.empty())
    device.where += format(", as it has no bfloat16: a run there needs {}", device.keys.front());
  return {};
}

}  // namespace

Result<PlannedDevice> device_to_plan_for(const spec::Job& job, const DeviceQuestion& asked,
                                         const CudaGpus& gpus) {
  PlannedDevice device;
  NEAP_TRY_ASSIGN(device.choice, choose(job, asked, gpus, device.assumed));
  Target& target = device.choice.target;
  const Card* const card = find_card(asked.gpu);
  NEAP_TRY(use_type(job, card, device));
  if (target.cuda) device.context = kCudaContext;
  const bool other_size = !asked.capacity.is_zero() || !asked.card.is_zero();
  const bool is_here = asked.gpu.empty() && gpus.count > 0 && !other_size;
  use_host(asked, is_here, device);
  if (!asked.card.is_zero()) {
    NEAP_TRY(use_card(asked, device));
  } else if (!asked.capacity.is_zero()) {
    target.capacity = asked.capacity;
  } else if (card != nullptr && target.capacity + kCudaContext == card->free) {
    device.sizes = format("{} to plan with: {} that are free on the {}, less {} for CUDA's context",
                          target.capacity, card->free, card->title, kCudaContext);
  }
  NEAP_TRY(settle_own_kernels(job.device, Status(), target));
  return device;
}

std::string PlannedDevice::heading() const {
  return assumed.empty() ? where : format("{} ({})", where, assumed);
}

Json PlannedDevice::to_json(const spec::Job& job) const {
  Json out = Json::object();
  out["device"] = choice.name;
  out["dtype"] = to_string(compute_dtype(job, choice.target));
  out["assumed"] = assumed.empty() ? Json() : Json(assumed);
  out["context"] = context.count();
  out["capacity"] = choice.target.capacity.count();
  out["host_memory"] = host.count();
  out["device_keys"] = keys;
  return out;
}

std::string PlannedDevice::totals(const MemoryPlan& plan) const {
  if (context.is_zero()) return format("needs    {} of host memory\n", plan.peak);
  std::string out = sizes.empty() ? "" : format("capacity {}\n", sizes);
  out += format(
      "needs    {} of device memory, {} in nvidia-smi with CUDA's context; {} of host memory",
      plan.peak, on_card(plan.peak), plan.host_bytes);
  if (!plan.disk_bytes.is_zero()) out += format("; {} on disk", plan.disk_bytes);
  if (lacks_host(plan))
    out += format(": more than the {} that {} for it", host,
                  host_is_asked ? "were asked for leave" : "this machine has");
  return out + "\n";
}

}  // namespace neap::plan
