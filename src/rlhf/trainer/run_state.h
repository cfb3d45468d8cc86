// trainer.json of a checkpoint: the job and data that it was trained with, and the state that a
// resumed run continues with.
//
// Threads   none of its own.
// Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "rlhf/data/job_data.h"
#include "rlhf/trainer/best_checkpoint.h"
#include "rlhf/trainer/stop_target.h"
#include "spec/job/job.h"
#include "spec/keys/degrees.h"
#include "train/checkpoint.h"
#include "weights/open_folders.h"

namespace neap::rlhf {

/// Fails for an unknown format.
[[nodiscard]] Json read_run_state(const std::filesystem::path& checkpoint);

/// Throws if a file of the checkpoint is missing or changed, or if trainer.json cannot be read.
void check_whole(const std::filesystem::path& checkpoint);

/// The job's keys before a plan chose others, and the contents of its models' folders
/// (weights/open_folders.h). "run" is a random name of the run, which resumed runs keep.
[[nodiscard]] Json identity_of(const spec::Job& job, const weights::OpenFolders& folders);
/// Whether a checkpoint folder was written by the run with this identity. `resumed` is the identity
/// in the checkpoint that the run resumed from, or null. nullopt: the folder's state cannot be
/// read.
[[nodiscard]] std::optional<bool> is_of_run(const std::filesystem::path& checkpoint,
                                            const Json& identity, const Json& resumed);

/// Writes trainer.json into the folder of a checkpoint that is being written.
void write_run_state(const std::filesystem::path& checkpoint, std::int64_t step,
                     const spec::Job& job, const Json& identity, const Rows& rows,
                     const BestCheckpoint& best, const StopTarget& stop);

/// Fails for a checkpoint of another task.
void check_task(const Json& state, const std::filesystem::path& checkpoint, const spec::Job& job);
/// `found` is the last checkpoint of a finished run. Fails if that run had other models, data or
/// keys than the job. Keys that do not affect training are not compared, and neither are missing
/// files.
void check_finished(const Json& state, const train::FoundCheckpoint& found, const spec::Job& job,
                    const Json& identity);

/// Warnings for keys, models or rows that differ. Fails if the checkpoint holds only an adapter and
/// its base differs. Keys about locations or output formats are not compared.
[[nodiscard]] std::vector<std::string> check_run_state(const Json& state,
                                                       const std::filesystem::path& checkpoint,
                                                       const spec::Job& job, const Json& identity,
                                                       const Rows& rows);

/// An error that explains why a checkpoint cannot be continued: the keys that differ, or
/// broken_checkpoint().
[[nodiscard]] Status refused_resume(Status status, const train::FoundCheckpoint& found,
                                    const Json& state, const spec::Job& job);
/// kInvalidArgument: why a checkpoint cannot be read, and how to resume from the one before it.
[[nodiscard]] Status broken_checkpoint(const Status& why, const train::FoundCheckpoint& found);

/// Settings that a plan may choose and that a resumed run must keep, as in the checkpoint's run.
[[nodiscard]] std::vector<spec::JobChange> saved_choices(const Json& state);
/// The parallel sizes of the checkpoint's run. nullopt if the job has another number of ranks, or
/// if the file does not say.
[[nodiscard]] std::optional<spec::Degrees> saved_degrees(const Json& state, const spec::Job& job);

}  // namespace neap::rlhf
