#include "rlhf/run/run.h"

#include <algorithm>

#include "base/format.h"
#include "base/log.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_cuda.h"
#include "parallel/run_collectively.h"
#include "plan/counting/nccl_memory.h"
#include "rlhf/run/prepared_run.h"
#include "rlhf/run/run_plan.h"
#include "rlhf/run/run_start.h"
#include "rlhf/run/training_steps.h"

namespace neap::rlhf {
namespace {

// Kernels of collectives load when they are first used. PPO of 7B on two H200s lacked 285 MiB beyond
// what one GPU's libraries take.
constexpr Bytes kLaterKernelsOfRanks = 304_MiB;

// Connects the ranks' GPUs. Afterwards the capacity is at most the free memory, together with the
// plan's allowance for NCCL and without what comes later.
void connect_gpus(const spec::Job& job, const parallel::Environment& environment,
                  parallel::ConnectOptions options, Launch& launch) {
  options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job.device.ordinal));
  const auto free = [&] { return value_or_throw(plan::free_memory(job.device)); };
  const Bytes before = free();
  launch.ranks = parallel::connect(environment, options);
  launch.ranks->barrier();  // the first collective allocates the buffers
  const Bytes after = free();
  const Bytes allowed = plan::nccl_bytes(job, plan::NcclSettings::of_process());
  const Bytes most = saturating_sub(after + allowed, kLaterKernelsOfRanks);
  Bytes& capacity = launch.device.target.capacity;
  capacity = std::min(capacity, std::max(most, Bytes(1)));
  if (launch.ranks->first())
    log::info(format("{} takes {} of the GPU; the plan has {} for it, and the run has {} in all",
                     launch.ranks->name(), saturating_sub(before, after), allowed, capacity));
}

}  // namespace

Launch join_ranks(spec::Job& job, const parallel::Environment& environment) {
  // A launcher may make only one GPU visible to each rank.
  if (environment.size > 1 && !job.device.is_cpu() && bridge::torch_cuda().devices > 1)
    job.device.ordinal += environment.local_rank;
  Launch launch{bridge::choose_run_device(job.device), nullptr};
  if (environment.size == 1) {
    launch.ranks = parallel::make_single();
    return launch;
  }
  // All ranks of a machine share its memory.
  launch.device.target.host_memory =
      launch.device.target.host_memory / static_cast<std::uint64_t>(environment.local_size);
  parallel::ConnectOptions options;
  options.timeout_seconds = static_cast<double>(job.nccl_timeout);
  if (launch.device.target.cuda) {
    connect_gpus(job, environment, options, launch);
  } else {
    launch.ranks = parallel::connect(environment, options);
  }
  return launch;
}

Outcome run(const spec::Job& job, const Launch& launch) {
  const bridge::NoAutograd no_autograd;
  RunStart start(job, launch.device, *launch.ranks);
  if (start.is_done()) return Outcome::kAlreadyDone;
  const RunPlan planned(start);
  PreparedRun prepared(start, planned);
  return prepared.live().run([&] {
    parallel::run_collectively(start.ranks, [&] { prepared.live().run([&] { prepared.load(); }); });
    const std::unique_ptr<RunOutput> files = open_output(start, prepared);
    return TrainingSteps(start, prepared, *files).run();
  });
}

}  // namespace neap::rlhf
