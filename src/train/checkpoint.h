// Checkpoint folders that are either complete or absent.
//
//   ROOT/global_step_N/                      everything of step N
//   ROOT/global_step_N/checksums.json        of its files (train/checkpoint_files.h)
//   ROOT/latest_checkpointed_iteration.txt   "N"
//   ROOT/latest                              link to global_step_N, for later configurations
//   ROOT/best                                link to the checkpoint with the best validation, if
//                                            the run compares them
//
// A checkpoint is written as global_step_N.tmp-PID, synced to disk, then renamed. A kill or a full
// disk leaves the last complete checkpoint in place. The folders decide which checkpoints exist.
// Without the text file, the newest complete checkpoint is found by its name. A writer opens the
// root folder and works through that descriptor, so the root may be moved or renamed meanwhile.
//
// Threads   one writer per root.
// Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"

namespace neap::train {

/// Which checkpoints to keep.
struct Retention {
  /// The number of checkpoints to keep: the committed one and the latest ones before it; 0: all.
  /// Checkpoints of later steps, which remain if a run resumed from an older one, are removed
  /// first.
  std::int64_t newest = 0;
  std::optional<std::int64_t> best;  ///< the step of the best checkpoint, which is also kept
  /// Whether the committing run wrote a checkpoint folder. Other folders are never removed. Empty:
  /// it wrote all.
  std::function<bool(const std::filesystem::path& folder)> is_own;
};

class CheckpointWriter {
 public:
  /// Creates the temporary folder, and removes leftovers of killed writers.
  CheckpointWriter(const std::filesystem::path& root, std::int64_t step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  ///< without commit(), removes what was written

  /// The folder to write in: a path through the open root, which stays valid if the root is moved.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The failure with the root's current path in its text. If folder() was removed, it is kIo and
  /// says so.
  [[nodiscard]] Status readable(const Status& failure) const;
  /// Syncs and renames the folder, sets the links `latest` and `best`, and removes old checkpoints.
  void commit(const Retention& keep);

 private:
  void commit_folder(const Retention& keep);

  Descriptor directory_;        // of the root
  std::filesystem::path root_;  // through the descriptor
  std::int64_t step_;
  std::filesystem::path folder_;
  bool committed_ = false;
};

[[nodiscard]] std::filesystem::path checkpoint_folder(const std::filesystem::path& root,
                                                      std::int64_t step);

/// Sets the link `best` in `root` to the checkpoint of `step`, or removes it. Returns false and
/// does nothing if the checkpoint does not exist.
[[nodiscard]] bool point_best(const std::filesystem::path& root, std::optional<std::int64_t> step);

struct FoundCheckpoint {
  std::filesystem::path folder;
  std::int64_t step = 0;
  std::string warning;  ///< how it was found if the text file does not name it; else empty
};
/// The checkpoint folders of `root`, highest step first; empty if `root` does not exist.
[[nodiscard]] std::vector<FoundCheckpoint> all_checkpoints(const std::filesystem::path& root);

/// Throws Error if a checkpoint folder is incomplete.
using CheckWhole = std::function<void(const std::filesystem::path& folder)>;

/// The folder that `trainer.resume_mode` selects. "disable": none. "auto": the one that the text
/// file names. If the file or that folder is missing, it is the complete checkpoint with the
/// highest step, with a warning. None if the root has no checkpoints. Fails if all checkpoints are
/// damaged, or if a path is not a checkpoint.
[[nodiscard]] std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& root,
                                                             const std::string& mode,
                                                             const std::filesystem::path& given,
                                                             const CheckWhole& check_whole);

/// Other checkpoints of the same run: earlier steps, the newest of them first; then later steps,
/// which were abandoned for an older checkpoint.
[[nodiscard]] std::vector<FoundCheckpoint> other_checkpoints(const FoundCheckpoint& one);

}  // namespace neap::train
