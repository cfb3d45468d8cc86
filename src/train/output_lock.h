// Allows one training run per folder. The first run locks FOLDER itself and FOLDER/train.lock; a
// second one is rejected.
//
// The kernel releases the locks when the process ends, for any reason. The file stays. The lock of
// the folder also works if train.lock is removed, but not on NFS. The lock of the file is an
// open-file-description lock, which NFS and most cluster file systems forward to their server. On a
// file system without locks (Lustre mounted without `flock`) a warning is logged and nothing is
// locked.
//
// A lock does not prevent others from moving or removing the folder. So a run calls check() after
// each step.
//
// Threads   one at a time.
// Failure   Error: kBusy with the holder's host and process id; kIo if the file cannot be created.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace neap::train {

class OutputLock {
 public:
  /// Creates the folder if it is missing, and takes its lock without waiting.
  explicit OutputLock(std::filesystem::path folder);
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  ~OutputLock();

  /// A change of the folder since the last call.
  struct Change {
    std::string what;           ///< "was removed", for messages
    std::filesystem::path now;  ///< the folder's path, still locked; empty: it is lost
  };
  /// nullopt if the folder has not moved. A removed train.lock is created again.
  [[nodiscard]] std::optional<Change> check();
  /// A path to the locked folder that stays valid if the folder is moved.
  [[nodiscard]] std::filesystem::path stable_path() const;

 private:
  /// Returns false if another process has the lock.
  [[nodiscard]] bool lock_file();
  [[nodiscard]] std::filesystem::path moved_to() const;

  std::filesystem::path folder_;
  int directory_ = -1;
  int file_ = -1;
};

}  // namespace neap::train
