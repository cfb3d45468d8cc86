// Writes a checkpoint in the background while training continues: at most one at a time.
//
// Model     A thread completes the files of one rank, and commits the folder. Several ranks complete
//           the files before start() returns, because ranks only communicate on one thread.
// Threads   one owner. It has a thread of low priority, which starts helpers.
// Failure   Error, or CollectiveError on every rank. The checkpoint is then removed.
#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <memory>

#include "parallel/communicator.h"
#include "train/checkpoint.h"
#include "train/saved_files.h"

namespace neap::train {

/// Runs `work`. Its errors say what happened to the checkpoint's folder; `writer` may be null.
void with_readable_errors(const CheckpointWriter* writer, const std::function<void()>& work);

class BackgroundSave {
 public:
  /// `ranks` must outlive it.
  explicit BackgroundSave(parallel::Communicator& ranks) : ranks_(ranks) {}
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  /// Waits for its thread. A failure is only logged.
  ~BackgroundSave();

  /// Every rank calls it. Waits for the previous checkpoint first. `writer` is null except on the
  /// first rank.
  void start(SavedFiles files, std::unique_ptr<CheckpointWriter> writer, Retention keep);
  /// Every rank calls it. Throws the failure of a checkpoint that has ended.
  void poll() { advance(/*waits=*/false); }
  /// Every rank calls it. Returns when the checkpoint is on disk.
  void wait() { advance(/*waits=*/true); }
  /// Waits for this rank's thread only, and returns its failure.
  [[nodiscard]] Status finish_here();

 private:
  struct Save {
    std::unique_ptr<CheckpointWriter> writer;
    Retention keep;
    SavedFiles files;
  };
  void advance(bool waits);

  parallel::Communicator& ranks_;
  std::future<void> running_;
};

}  // namespace neap::train
