// One training run a folder: the first locks FOLDER itself and FOLDER/train.lock, a second is refused.
//
// The kernel releases the locks when the process ends, however it ends; the file stays. The folder's
// lock holds where train.lock is removed, but only on file systems that lock folders (not NFS). The
// file's is an open-file-description lock, which NFS and most cluster file systems pass to their
// server. On a file system without locks (Lustre mounted without `flock`) a warning is logged and
// nothing is held.
//
// A lock does not keep others from moving or removing the folder: a run asks check() after each step.
//
// Threads   one at a time.
// Failure   Error: kBusy with the holder's host and process id, kIo when the file cannot be made.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace neap::train {

class OutputLock {
 public:
  /// Makes the folder where it is missing and takes its lock without waiting.
  explicit OutputLock(std::filesystem::path folder);
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  ~OutputLock();

  /// What happened to the folder since the last call.
  struct Change {
    std::string what;           ///< "was removed", for messages
    std::filesystem::path now;  ///< where the folder is, still locked; empty: it is lost
  };
  /// Nothing where the folder is where it was. A train.lock that was removed is made again.
  [[nodiscard]] std::optional<Change> check();
  /// A path to the locked folder that stays right wherever it is moved.
  [[nodiscard]] std::filesystem::path stable_path() const;

 private:
  /// False: another process has it.
  [[nodiscard]] bool lock_file();
  [[nodiscard]] std::filesystem::path moved_to() const;

  std::filesystem::path folder_;
  int directory_ = -1;
  int file_ = -1;
};

}  // namespace neap::train
