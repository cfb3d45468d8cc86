#include "rlhf/run/run.h"

#include <c10/util/Exception.h>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/text.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_cuda.h"
#include "parallel/run_collectively.h"
#include "plan/counting/nccl_memory.h"
#include "rlhf/run/training_run.h"

namespace neap::rlhf {
namespace {

// Connects the ranks' GPUs. Logs the device memory that this takes in addition to the plan's
// allowance.
std::unique_ptr<parallel::Communicator> connect_gpus(const spec::Job& job,
                                                     const parallel::Environment& environment,
                                                     parallel::ConnectOptions options) {
  options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job.device.ordinal));
  const auto free = [&] { return value_or_throw(plan::free_memory(job.device)); };
  const Bytes before = free();
  std::unique_ptr<parallel::Communicator> ranks = parallel::connect(environment, options);
  ranks->barrier();  // the first collective allocates the buffers
  if (ranks->first())
    log::info(format("{} takes {} of the GPU; the plan has {} for it", ranks->name(),
                     saturating_sub(before, free()),
                     plan::nccl_bytes(job, plan::NcclSettings::of_process())));
  return ranks;
}

}  // namespace

Outcome TrainingRun::execute() {
  compare_jobs();
  groups_.emplace(ranks_, job_);
  if (already_done()) return Outcome::kAlreadyDone;
  open_copy_lanes();
  // Errors in data, weights and checkpoint must be found before the run's files are modified.
  make_plan();
  compare_plans();
  spec::apply(plan_.changes, job_);
  throw_if_error(job_.validate());
  add_stage_waits();
  parallel::run_collectively(ranks_, [&] { prepare(); });
  ranks_.expect_same({{"data.train_files", joined(data_->train.files().contents(), " ")},
                      {"data.val_files", joined(data_->held_out.files().contents(), " ")}});
  trainer_->precompute();
  parallel::run_collectively(ranks_, [&] { load(); });
  parallel::run_collectively(ranks_, [&] { open_output(); });
  files_->write_phases(runtime_->take_measurements(), step_, nullptr);
  std::optional<InterruptScope> interrupts;  // active until the last checkpoint is written
  show_progress();
  try {
    if (!found_) validate();
    // Launchers also send the signal after a rank was killed. Then no rank can finish its step.
    interrupts.emplace(
        ranks_.alone()
            ? "\nStopping after this step, with a checkpoint. Once more to stop at once, without.\n"
            : "\nStopping after this step. If all ranks reach its end, a checkpoint is saved. Once "
              "more to stop at once, without.\n");
    loop();
  } catch (const StepInterrupted&) {
    interrupted_ = true;
    save_last();
  } catch (const StepFailure& e) {
    keep_steps_before(e);
  } catch (const parallel::CollectiveError&) {  // every rank is here
    finish_save();
    throw;
  }
  follow_output();  // it may have moved since the last step
  if (progress_) progress_->finish();
  if (interrupted_ && step_ < total_steps_) {
    if (ranks_.first()) {
      log::warn(format("Interrupted after step {} of {}. {}.", step_, total_steps_, saved_steps()));
    }
    return Outcome::kInterrupted;
  }
  finish();
  follow_output();  // or since the line above
  return Outcome::kDone;
}

void TrainingRun::open_copy_lanes() {
  if (!device_.target.cuda) return;
  std::string problem;
  for (const spec::ModelId model : job_.models()) {
    parallel::Communicator& shards = groups_->of(model).shards();
    if (!plan::uses_copy_lane(job_, model) || shards.has_copy_lane()) continue;
    if (problem.empty()) problem = shards.open_copy_lane();
  }
  if (problem.empty() || !ranks_.first()) return;
  const std::string line = format(
      "Gradients and weights go through NCCL: GPUs do not write into each other's memory ({})",
      problem);
  if (job_.parallel.transport == "auto") {
    log::info(line);
  } else {
    log::warn(line);
  }
}

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
  launch.ranks = launch.device.target.cuda ? connect_gpus(job, environment, options)
                                           : parallel::connect(environment, options);
  return launch;
}

Outcome run(const spec::Job& job, const Launch& launch) {
  const bridge::NoAutograd no_autograd;
  TrainingRun run(job, launch.device, *launch.ranks);
  try {
    return run.execute();
  } catch (const c10::OutOfMemoryError&) {
    throw_if_error(run.last_oom());
    throw;
  }
}

}  // namespace neap::rlhf
