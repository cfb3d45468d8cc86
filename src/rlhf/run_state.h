// trainer.json of a checkpoint: the job and the data that it was trained with, and what a run that
// resumes continues with.
//
// Threads   none of its own.   Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "rlhf/best_checkpoint.h"
#include "rlhf/job_data.h"
#include "rlhf/stop_target.h"
#include "spec/degrees.h"
#include "spec/job.h"
#include "train/checkpoint.h"

namespace neap::rlhf {

/// Refuses a file of another form.
[[nodiscard]] Json read_run_state(const std::filesystem::path& checkpoint);

/// Throws where a file of the checkpoint is missing or not what was saved, or trainer.json cannot be read.
void check_whole(const std::filesystem::path& checkpoint);

/// What a job asks for, by its keys before a plan chose others; the contents of the folders of its models
/// (weights/fingerprint.h); and in "run" a random name of the run, which processes that resume it keep.
[[nodiscard]] Json identity_of(const spec::Job& job);
/// Whether the run with this identity, which resumed from `resumed` (null: it did not resume), wrote a checkpoint folder;
/// nullopt: the folder's state cannot be read.
[[nodiscard]] std::optional<bool> is_of_run(const std::filesystem::path& checkpoint,
                                            const Json& identity, const Json& resumed);

/// Into the folder of a checkpoint that is being written.
void write_run_state(const std::filesystem::path& checkpoint, std::int64_t step,
                     const spec::Job& job, const Json& identity, const Rows& rows,
                     const BestCheckpoint& best, const StopTarget& stop);

/// Refuses a checkpoint of another task.
void check_task(const Json& state, const std::filesystem::path& checkpoint, const spec::Job& job);
/// Refuses a finished run, whose last checkpoint is `found`, of other models, data or keys than the
/// job's. Keys that do not change what is trained are not compared, nor are files that are gone.
void check_finished(const Json& state, const train::FoundCheckpoint& found, const spec::Job& job,
                    const Json& identity);

/// Warnings where keys, models or rows differ; fails where the checkpoint holds an adapter alone and its
/// base differs. Keys that only say where things are or how results are kept are not compared.
[[nodiscard]] std::vector<std::string> check_run_state(const Json& state,
                                                       const std::filesystem::path& checkpoint,
                                                       const spec::Job& job, const Json& identity,
                                                       const Rows& rows);

/// Why a checkpoint cannot be continued: with the keys that differ from it, or as broken_checkpoint.
[[nodiscard]] Status refused_resume(Status status, const train::FoundCheckpoint& found,
                                    const Json& state, const spec::Job& job);
/// kInvalidArgument: why a checkpoint cannot be read, and how to resume from the one before it.
[[nodiscard]] Status broken_checkpoint(const Status& why, const train::FoundCheckpoint& found);

/// What the plan may choose and a resumed run has to keep, as the checkpoint's run had it.
[[nodiscard]] std::vector<spec::JobChange> saved_choices(const Json& state);
/// How the checkpoint's run divided its ranks; nullopt: the job has another number of them, or the file does not say.
[[nodiscard]] std::optional<spec::Degrees> saved_degrees(const Json& state, const spec::Job& job);

}  // namespace neap::rlhf
