#include "rlhf/run/prepared_run.h"

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "parallel/run_collectively.h"
#include "report/metrics.h"
#include "report/run_folder.h"
#include "rlhf/trainer/run_state.h"

namespace neap::rlhf {
namespace fs = std::filesystem;

RunTrace::RunTrace(const spec::Job& job, const fs::path& own, const plan::MemoryPlan& plan)
    : path_(own / std::string(report::kTraceFile)) {
  if (job.trainer.trace_max_size.is_zero()) return;
  trace::RecorderOptions options;
  options.most_bytes = job.trainer.trace_max_size;
  recorder_ = value_or_throw(trace::Recorder::open(path_.string() + ".new",
                                                   {{"plan", json_text(plan.to_json())}}, options));
}

RunTrace::~RunTrace() {
  std::error_code ignored;
  if (recorder_ && !kept_) fs::remove(recorder_->path(), ignored);
}

void RunTrace::keep() {
  if (recorder_) {
    throw_if_error(recorder_->rename(path_));
  } else {
    std::error_code ignored;
    fs::remove(path_, ignored);  // it does not describe this run's memory
  }
  kept_ = true;
}

void RunTrace::close() {
  if (!recorder_) return;
  if (const Status closed = recorder_->close(); !closed.ok())
    log::warn(format("No whole trace: {}", closed.message()));
}

PreparedRun::PreparedRun(RunStart& start, const RunPlan& planned)
    : start_(start), planned_(planned) {
  parallel::run_collectively(start.ranks, [&] {
    print_plan();
    check_output();
    RunInputs& inputs = start.inputs();
    trace_ = std::make_unique<RunTrace>(start.job, start.folders.own, plan());
    live_ = std::make_unique<LiveJob>(inputs.live(), start.device, plan(), start.groups,
                                      trace_->recorder(), start.total_steps);
    trainer_ = live_->run([&] { return make_trainer(live_->context()); });
    warn_of_changes();
  });
  const JobData& data = start.inputs().data;
  start.ranks.expect_same({{"data.train_files", joined(data.train.files().contents(), " ")},
                           {"data.val_files", joined(data.held_out.files().contents(), " ")}});
  live_->run([&] { trainer_->precompute(); });
}

void PreparedRun::print_plan() const {
  if (!start_.ranks.first()) return;
  if (!start_.ranks.alone())
    print(format("{} ranks over {}; {}\n\n", start_.ranks.size(), start_.ranks.name(),
                 planned_.whose_plan()));
  print(plan().to_text() + "\n");
}

void PreparedRun::check_output() const {
  const fs::path& output = start_.output.path();
  const fs::path metrics = output / std::string(report::kMetricsFile);
  std::error_code error;
  if (start_.ranks.first() && start_.job.trainer.resume_mode == "disable" &&
      fs::exists(metrics, error)) {
    throw Error(ErrorCode::kAlreadyExists,
                format("{} holds a run already; set trainer.default_local_dir to another folder, "
                       "or trainer.resume_mode = \"auto\" to resume",
                       output.string()));
  }
  const fs::path& own = start_.folders.own;
  fs::create_directories(own, error);
  if (error)
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", own.string(), error.message()));
}

void PreparedRun::warn_of_changes() {
  const ResumePoint& resume = start_.resume;
  if (!resume.found) return;
  for (const std::string& warning :
       check_run_state(resume.state, resume.found->folder, start_.job, resume.identity, rows()))
    if (start_.ranks.first()) log::warn(warning);
}

void PreparedRun::load() {
  load_or_restore();
  start_.device.target.folders.close();
}

void PreparedRun::load_or_restore() {
  const ResumePoint& resume = start_.resume;
  if (!resume.found) return trainer_->load();
  try {
    trainer_->restore(resume.found->folder);
  } catch (const Error& e) {
    throw Error(refused_resume(e.status(), *resume.found, resume.state, start_.job));
  }
  start_.position.best.restore(resume.state.value("best", Json()), start_.output.path());
  log::info(format("Resuming from {}, step {} of {}", resume.found->folder.string(), resume.step(),
                   start_.total_steps));
}

}  // namespace neap::rlhf
