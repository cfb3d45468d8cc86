#include "rlhf/run/run_start.h"

#include "base/config.h"
#include "base/format.h"
#include "base/log.h"
#include "parallel/run_collectively.h"
#include "rlhf/trainer/kept_steps.h"
#include "rlhf/trainer/run_state.h"

namespace neap::rlhf {
namespace {

// If ranks trained different jobs, they would sum unrelated gradients or wait for each other
// forever. Only device settings may differ.
spec::Job same_on_all(spec::Job job, parallel::Communicator& ranks) {
  std::vector<parallel::Communicator::NamedText> texts;
  for (const auto& [path, value] : job.bind().values()) {
    if (path.rfind("device.", 0) != 0) texts.push_back({path, json_text(value)});
  }
  ranks.expect_same(texts);
  return job;
}

RunFolders folders_of(const OutputFolder& output, const parallel::Communicator& ranks) {
  const auto& path = output.path();
  return {path, ranks.first() ? path : path / "ranks" / std::to_string(ranks.rank())};
}

}  // namespace

RunInputs::RunInputs(const spec::Job& job, std::int64_t threads, int ranks)
    : texts(job),
      rewards(make_rewards(job, threads)),
      data(read_data(texts.context, reward_check(job, rewards), encoding_threads(threads, ranks))) {
}

RunStart::RunStart(const spec::Job& configured, const plan::DeviceChoice& device_choice,
                   parallel::Communicator& communicator)
    : job(same_on_all(configured, communicator)),
      device(device_choice),
      ranks(communicator),
      kinds(spec::rank_kinds(job.model_meshes())),
      groups(ranks, job),
      output(job.output_folder()),
      folders(folders_of(output, ranks)),
      position{0, BestCheckpoint(job.trainer), StopTarget(job.trainer)} {
  parallel::run_collectively(ranks, [&] {
    if (ranks.first()) output.lock();
    resume = find_resume_point(job, output.path(), /*warns=*/ranks.first(), device.target.folders);
    total_steps = count_steps();
    position.step = resume.step();
    position.stop.restore(resume.state.value("stop", Json()), position.step);
    if (resume.found && (position.stop.reached() || position.step >= total_steps))
      check_finished(resume.state, *resume.found, job, resume.identity);
  });
  ranks.expect_same(resume.found ? resume.found->step : -1,
                    format("The newest checkpoint's step in {} (all machines have to share the "
                           "folder; -1 is none)",
                           output.path().string()));
  ranks.expect_same(total_steps, "The number of steps");
}

// With epochs, the number of steps depends on the rows. Without a number, kept experience has that
// of its run.
std::int64_t RunStart::count_steps() {
  if (job.reads_experience()) {
    const KeptSteps kept(job.resolve(job.trainer.experience_dir));
    const std::int64_t asked = job.trainer.total_training_steps;
    const std::int64_t steps = asked > 0 ? asked : kept.schedule().total_steps;
    kept.expect(resume.step(), steps);
    return steps;
  }
  if (job.trainer.total_training_steps > 0) return job.trainer.total_training_steps;
  return job.trainer.total_epochs * batch_order(job, inputs().data).steps_per_epoch();
}

bool RunStart::is_done() const {
  if (position.stop.reached()) {
    log::info(
        format("{} is done: {}. To continue, set another trainer.stop_value or none; to start "
               "anew, set another trainer.default_local_dir.",
               output.path().string(), position.stop.text()));
    return true;
  }
  if (!resume.found || position.step < total_steps) return false;
  log::info(
      format("{} is at step {} of {}: done. To continue, raise trainer.total_training_steps or "
             "trainer.total_epochs; to start anew, set another "
             "trainer.default_local_dir.",
             output.path().string(), position.step, total_steps));
  return true;
}

RunInputs& RunStart::inputs() {
  if (!inputs_) inputs_ = std::make_unique<RunInputs>(job, device.target.threads, ranks.size());
  return *inputs_;
}

}  // namespace neap::rlhf
