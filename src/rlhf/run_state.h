// trainer.json of a checkpoint: the job and the data that it was trained with, and what a run that
// resumes continues with.
//
// Threads   none of its own.   Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "rlhf/best_checkpoint.h"
#include "rlhf/job_data.h"
#include "rlhf/stop_target.h"
#include "spec/job.h"

namespace neap::rlhf {

/// Refuses a file of another form.
[[nodiscard]] Json read_run_state(const std::filesystem::path& checkpoint);

/// Into the folder of a checkpoint that is being written.
void write_run_state(const std::filesystem::path& checkpoint, std::int64_t step,
                     const spec::Job& job, const Rows& rows, const BestCheckpoint& best,
                     const StopTarget& stop);

/// Refuses a checkpoint of another task; warns where keys or rows differ. Keys that only say where
/// things are or how results are kept are not compared.
void check_run_state(const Json& state, const std::filesystem::path& checkpoint,
                     const spec::Job& job, const Rows& rows);

/// Why a checkpoint cannot be continued, with the keys that differ from it.
[[nodiscard]] Status refused_resume(Status status, const Json& state, const spec::Job& job);

/// "key=value" of what the plan may choose and a resumed run has to keep.
[[nodiscard]] std::vector<std::string> saved_choices(const Json& state);

}  // namespace neap::rlhf
