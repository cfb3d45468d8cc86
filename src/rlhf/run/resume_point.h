// The start of a run: the first step, or a checkpoint of this run in the output folder.
//
// Threads   none of its own.
// Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/json.h"
#include "spec/job/job.h"
#include "train/checkpoint.h"
#include "weights/open_folders.h"

namespace neap::rlhf {

struct ResumePoint {
  Json identity;  ///< of the job as configured (run_state.h)
  std::optional<train::FoundCheckpoint> found;
  Json state = Json::object();  ///< of `found`

  /// Finished steps.
  [[nodiscard]] std::int64_t step() const { return found ? found->step : 0; }
  /// Whether this run wrote a checkpoint folder. nullopt: the folder's state cannot be read.
  [[nodiscard]] std::optional<bool> is_own(const std::filesystem::path& checkpoint) const;
};

/// Finds the checkpoint that trainer.resume_mode names in the folder `output`. Fails if it is
/// damaged, or if the folder holds checkpoints of other runs. `warns`: logs why it is not the one
/// that the folder's pointer names.
[[nodiscard]] ResumePoint find_resume_point(const spec::Job& job,
                                            const std::filesystem::path& output, bool warns,
                                            const weights::OpenFolders& folders);

}  // namespace neap::rlhf
