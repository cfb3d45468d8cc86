// Checkpoint folders that exist whole or not at all.
//
//   ROOT/global_step_N/                      everything of step N
//   ROOT/latest_checkpointed_iteration.txt   "N"
//   ROOT/latest                              link to global_step_N, for configurations that go on
//                                            from this run
//   ROOT/best                                link to the checkpoint with the best validation, if the
//                                            run compares them
//   ROOT/global_step_N/checksums.json        of its files (train/checkpoint_files.h)
// Written as global_step_N.tmp-PID, synced to the disk, then renamed; a kill or a full disk leaves
// the last whole checkpoint in place.
// Files written without a sync are in the kernel's page cache; putting them on the disk is most of the
// time of a save and needs none of the program's memory, so it can continue during training.
// The folders are the truth: without the text file the newest whole checkpoint is found by its name.
// A writer keeps the root open and works through it, so that it may be moved or renamed meanwhile.
// Threads   one writer per root.   Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"

namespace neap::train {

/// Which checkpoints stay.
struct Retention {
  /// So many, the one that is committed and those before it first; 0: all. Those of later steps, of
  /// a run that went on from an older checkpoint, go before them.
  std::int64_t newest = 0;
  std::optional<std::int64_t> best;  ///< this step's, besides
  /// Whether the run that commits wrote a checkpoint folder; others are never removed. Empty: it wrote all.
  std::function<bool(const std::filesystem::path& folder)> is_own;
};

class CheckpointWriter {
 public:
  /// Makes the temporary folder; leftovers of killed writers are removed.
  CheckpointWriter(std::filesystem::path root, std::int64_t step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  ///< without commit, removes what was written

  /// Where to write: a path through the open root, which stays valid if the root is moved.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The same failure with the root's present path in the text in place of the path through it; kIo, with that reason,
  /// where somebody has removed folder().
  [[nodiscard]] Status readable(const Status& failure) const;
  /// Syncs, renames, points `latest` to it and `best` to the best, and removes the others.
  void commit(const Retention& keep);

 private:
  void commit_folder(const Retention& keep);

  Descriptor directory_;        // of the root
  std::filesystem::path root_;  // through the descriptor
  std::int64_t step_;
  std::filesystem::path folder_;
  bool committed_ = false;
};

/// Commits one checkpoint while the caller goes on.
class BackgroundCommit {
 public:
  /// Waits for a commit under way; its failure is only logged.
  ~BackgroundCommit();
  /// Waits for the one before.
  void start(std::unique_ptr<CheckpointWriter> writer, const Retention& keep);
  /// Throws what a commit that has ended failed with.
  void poll();
  void wait();

 private:
  std::future<void> running_;
};

[[nodiscard]] std::filesystem::path checkpoint_folder(const std::filesystem::path& root,
                                                      std::int64_t step);

/// Points `best` in `root` to the checkpoint of `step`, or removes the link. False: there is no such
/// checkpoint, and nothing is done.
[[nodiscard]] bool point_best(const std::filesystem::path& root, std::optional<std::int64_t> step);

struct FoundCheckpoint {
  std::filesystem::path folder;
  std::int64_t step = 0;
  std::string warning;  ///< how it was found where the text file does not name it; else empty
};
/// The checkpoint folders of `root`, the highest step first; none where it is not there.
[[nodiscard]] std::vector<FoundCheckpoint> all_checkpoints(const std::filesystem::path& root);

/// Throws Error where a checkpoint folder is not whole.
using CheckWhole = std::function<void(const std::filesystem::path& folder)>;

/// The folder that `trainer.resume_mode` names. "disable": none. "auto": the one that the text file names; without the
/// file, or where its folder is gone, the whole one of the highest step, with a warning to show; none where the root has no
/// checkpoint. Errors: a root whose checkpoints are all damaged, and a path that is not a checkpoint.
[[nodiscard]] std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& root,
                                                             const std::string& mode,
                                                             const std::filesystem::path& given,
                                                             const CheckWhole& check_whole);

/// The others of the same run: those before it first, the newest of them first, then later ones, which
/// are of a run that was given up for an older checkpoint.
[[nodiscard]] std::vector<FoundCheckpoint> other_checkpoints(const FoundCheckpoint& one);

}  // namespace neap::train
