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
// Threads   one writer a root.   Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace neap::train {

/// Which checkpoints stay.
struct Retention {
  /// So many, the one that is committed and those before it first; 0: all. Those of later steps, of
  /// a run that went on from an older checkpoint, go before them.
  std::int64_t newest = 0;
  std::optional<std::int64_t> best;  ///< this step's, besides
};

class CheckpointWriter {
 public:
  /// Makes the temporary folder; leftovers of killed writers are removed.
  CheckpointWriter(std::filesystem::path root, std::int64_t step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  ///< without commit, removes what was written

  /// Where to write.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// Syncs, renames, points `latest` to it and `best` to the best, and removes the others.
  void commit(const Retention& keep);

 private:
  std::filesystem::path root_;
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
};
/// What `trainer.resume_mode` means now: nothing for "disable" and for "auto" without a checkpoint;
/// else the folder. A pointer to a folder that is gone, and a path that is no checkpoint, are
/// errors.
[[nodiscard]] std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& root,
                                                             const std::string& mode,
                                                             const std::filesystem::path& given);

/// The others of the same run: those before it first, the newest of them first, then later ones, which
/// are of a run that was given up for an older checkpoint.
[[nodiscard]] std::vector<FoundCheckpoint> other_checkpoints(const FoundCheckpoint& one);

}  // namespace neap::train
