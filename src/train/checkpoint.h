// Checkpoint folders that exist whole or not at all.
//
//   ROOT/global_step_N/                      everything of step N
//   ROOT/latest_checkpointed_iteration.txt   "N"
//   ROOT/latest                              link to global_step_N, for configurations that go on
//                                            from this run
// Written as global_step_N.tmp-PID, synced to the disk, then renamed; a kill or a full disk leaves
// the last whole checkpoint in place.
// Threads   one writer a root.   Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace neap::train {

class CheckpointWriter {
 public:
  /// Makes the temporary folder; leftovers of killed writers are removed.
  CheckpointWriter(std::filesystem::path root, std::int64_t step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  ///< without commit, removes what was written

  /// Where to write.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// Syncs, renames, points latest to it, and removes all but the newest `keep` (0: all stay).
  void commit(std::int64_t keep);

 private:
  std::filesystem::path root_;
  std::int64_t step_;
  std::filesystem::path folder_;
  bool committed_ = false;
};

[[nodiscard]] std::filesystem::path checkpoint_folder(const std::filesystem::path& root,
                                                      std::int64_t step);

struct FoundCheckpoint {
  std::filesystem::path folder;
  std::int64_t step = 0;
};
/// What `trainer.resume_mode` means now: nothing for "disable" and for "auto" without a checkpoint;
/// else the folder. A pointer to a folder that is gone, and a path that is no checkpoint, are
/// errors.
[[nodiscard]] std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& root,
                                                             const std::string& mode,
                                                             const std::filesystem::path& given);

}  // namespace neap::train
