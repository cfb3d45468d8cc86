// Writes a checkpoint in the background while training continues: at most one at a time.
//
// Model     Stages of a thread of each rank. With several ranks, poll() and wait() start the next
//           stage when all ranks have ended one, because ranks only communicate on one thread. One
//           rank needs no calls. The last stage commits the folder.
// Threads   one of the owner; a thread at low priority, which starts helpers.
// Failure   Error, or CollectiveError on every rank. The checkpoint is then removed.
#pragma once

#include <future>
#include <memory>

#include "parallel/communicator.h"
#include "train/checkpoint.h"
#include "train/saved_files.h"

namespace neap::train {

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
  /// Every rank calls it. Throws the failure of a stage that has ended.
  void poll() { advance(/*waits=*/false); }
  /// Every rank calls it. Returns when the checkpoint is on disk.
  void wait();

 private:
  struct Save {
    std::unique_ptr<CheckpointWriter> writer;
    Retention keep;
    SavedFiles files;
    std::size_t stage = 0;
  };
  static void run_stage(Save& save);
  void launch();
  void advance(bool waits);

  parallel::Communicator& ranks_;
  std::unique_ptr<Save> save_;  // null: none
  std::future<void> running_;   // uses save_
};

}  // namespace neap::train
