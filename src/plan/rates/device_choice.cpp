#include "plan/rates/device_choice.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>

#include "arena/host_memory.h"
#include "base/file.h"
#include "base/format.h"
#include "device/cuda/cuda_device.h"
#include "kernels/compiler.h"
#include "plan/rates/device_rates.h"
#include "plan/rates/gpu_catalog.h"
#include "plan/results/host_share.h"

namespace neap::plan {
namespace {

// Counts one logical core per physical core in the affinity mask.
std::int64_t physical_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  std::set<std::string> cores;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    const auto siblings = read_file(
        format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu), 4_KiB);
    cores.insert(siblings.ok() ? siblings.value() : std::to_string(cpu));
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(cores.size()));
}

// Whole cores of the cgroup's quota ("max 100000" or "200000 100000"); `cores` without a quota.
std::int64_t within_quota(std::int64_t cores) {
  const auto text = read_file("/sys/fs/cgroup/cpu.max", 4_KiB);
  if (!text.ok()) return cores;
  char* end = nullptr;
  const double quota = std::strtod(text->c_str(), &end);
  if (end == text->c_str()) return cores;
  const double period = std::strtod(end, nullptr);
  if (quota <= 0 || period <= 0) return cores;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(quota / period), 1, cores);
}

// Empty if the GPU has the least one.
std::string needs_capability(std::string_view what, int least, int architecture) {
  if (architecture >= least) return {};
  const auto capability = [](int number) { return format("{}.{}", number / 10, number % 10); };
  return format("the GPU has compute capability {}, and {} {}", capability(architecture), what,
                capability(least));
}

void use_rates(Target& target, PlanRates rates) {
  target.rates = rates.kernels;
  target.link = rates.link;
  target.rates_from = std::move(rates.from);
}

Status fill_cuda(const spec::DeviceConfig& config, DeviceChoice& choice) {
  NEAP_TRY_ASSIGN(const auto device, device::make_cuda_device(static_cast<int>(config.ordinal)));
  choice.name = device->info().name;
  choice.target.granularity = device->info().granularity;
  if (device->info().multiprocessors > 0)
    choice.target.multiprocessors = device->info().multiprocessors;
  use_architecture(choice.target, device->info().architecture);
  use_rates(choice.target, rates_of_gpu(choice.name));
  choice.target.host_memory = for_copies(arena::available_host_memory());
  if (!config.memory.is_zero()) return {};
  NEAP_TRY_ASSIGN(const device::MemoryInfo memory, device->memory());
  choice.target.capacity = std::max(saturating_sub(memory.free, kLaterKernels), Bytes(1));
  return {};
}

}  // namespace

CudaGpus driver_gpus() {
  const Result<int> count = device::cuda_device_count();
  return count.ok() ? CudaGpus{*count, "the driver sees no GPU"}
                    : CudaGpus{0, count.status().message()};
}

Result<std::int64_t> kernel_threads() {
  // A few threads per core are only slow; with thousands OpenMP crashes.
  constexpr std::int64_t kFew = 256;
  const std::int64_t most = std::max<std::int64_t>(kFew, ::sysconf(_SC_NPROCESSORS_CONF));
  if (const char* value = std::getenv("OMP_NUM_THREADS"); value != nullptr) {
    const std::int64_t threads = std::strtol(value, nullptr, 10);
    if (threads > most)
      return Status(ErrorCode::kInvalidArgument,
                    format("OMP_NUM_THREADS is {}; the most is {} threads here. Set it to the "
                           "number of cores, or unset it",
                           threads, most));
    if (threads > 0) return threads;
  }
  return within_quota(physical_cores());
}

Result<DeviceChoice> choose_device(const spec::DeviceConfig& config, const CudaGpus& gpus,
                                   Purpose purpose) {
  DeviceChoice choice;
  Target& target = choice.target;
  NEAP_TRY_ASSIGN(target.threads, kernel_threads());
  target.capacity = config.memory;
  const bool there = !config.is_cpu() && config.ordinal < gpus.count;
  if (there) {
    target.cuda = true;
    NEAP_TRY(fill_cuda(config, choice));
    return choice;
  }
  if (!config.is_cpu() && gpus.count > 0) {
    return Status(ErrorCode::kInvalidArgument,
                  format("device.ordinal is {}; this machine has {} GPUs, counted from 0",
                         config.ordinal, gpus.count));
  }
  if (config.kind == "cuda") {
    if (purpose == Purpose::kRun)
      return Status(ErrorCode::kUnsupported,
                    format("device.kind is \"cuda\", but {}", gpus.reason));
    target.cuda = target.own_kernels = target.warp_groups = true;
    choice.name = "GPU";
    use_rates(target, rates_without_gpu());
    return choice;
  }
  choice.name = "host memory";
  use_rates(target, rates_of_host(target.threads));
  if (target.capacity.is_zero()) target.capacity = arena::available_host_memory();
  return choice;
}

void use_architecture(Target& target, int architecture) {
  target.no_own_kernels = no_own_kernels_on(architecture);
  target.own_kernels = target.no_own_kernels.empty();
  target.warp_groups = architecture == kernels::kWarpGroupArchitecture;
  target.no_fp8 = no_fp8_on(architecture);
}

std::string no_own_kernels_on(int architecture) {
  return needs_capability("Neap's kernels need", kernels::kOldestArchitecture, architecture);
}
std::string no_fp8_on(int architecture) {
  return needs_capability("matrix products of fp8 need", kernels::kFp8Architecture, architecture);
}

Status settle_own_kernels(const spec::DeviceConfig& config, const Status& loaded, Target& target) {
  if (target.own_kernels && !loaded.ok()) {
    target.own_kernels = false;
    // A compiler's log has many lines.
    target.no_own_kernels = loaded.message().substr(0, loaded.message().find('\n'));
  }
  if (config.kernels != "neap" || target.own_kernels) return {};
  const std::string reason = !target.cuda  ? "the job runs on the CPU"
                             : loaded.ok() ? target.no_own_kernels
                                           : loaded.message();
  return Status(ErrorCode::kUnsupported,
                format("device.kernels is \"neap\", but Neap's kernels do not run: {}. With "
                       "\"auto\" the job takes libtorch's where they do not",
                       reason));
}

Result<Bytes> free_memory(const spec::DeviceConfig& config) {
  NEAP_TRY_ASSIGN(const auto device, device::make_cuda_device(static_cast<int>(config.ordinal)));
  NEAP_TRY_ASSIGN(const device::MemoryInfo memory, device->memory());
  return memory.free;
}

}  // namespace neap::plan
