#include "rlhf/run/resume_point.h"

#include "base/format.h"
#include "base/log.h"
#include "rlhf/trainer/run_state.h"
#include "train/checkpoint_files.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

// This run would replace other runs' checkpoints of the same steps.
void refuse_other_runs(const ResumePoint& start, const spec::Job& job, const fs::path& output) {
  for (const train::FoundCheckpoint& each : train::all_checkpoints(output)) {
    // An unreadable checkpoint may be a damaged one of the run that is resumed.
    if (start.is_own(each.folder).value_or(start.found.has_value())) continue;
    throw Error(ErrorCode::kAlreadyExists,
                format("{} holds a run already: this run did not write {}. Set "
                       "trainer.default_local_dir to another folder{}",
                       output.string(), each.folder.filename().string(),
                       job.trainer.resume_mode == "disable"
                           ? ", or trainer.resume_mode = \"auto\" to resume"
                           : ""));
  }
}

}  // namespace

std::optional<bool> ResumePoint::is_own(const fs::path& checkpoint) const {
  if (found && checkpoint == found->folder) return true;  // it gave the run its name
  return is_of_run(checkpoint, identity, found ? state : Json());
}

ResumePoint find_resume_point(const spec::Job& job, const fs::path& output, bool warns,
                              const weights::OpenFolders& folders) {
  ResumePoint start;
  start.found = train::find_checkpoint(output, job.trainer.resume_mode,
                                       job.resolve(job.trainer.resume_mode), check_whole);
  if (warns && start.found && !start.found->warning.empty()) log::warn(start.found->warning);
  start.identity = identity_of(job, folders);
  if (start.found) {
    try {
      start.state = read_run_state(start.found->folder);
      train::check_files(start.found->folder, folders);
    } catch (const Error& e) {
      throw Error(broken_checkpoint(e.status(), *start.found));
    }
    check_task(start.state, start.found->folder, job);
    if (start.state.contains("run")) start.identity["run"] = start.state["run"];
  }
  refuse_other_runs(start, job, output);
  return start;
}

}  // namespace neap::rlhf
