// One training run a folder: the first holds a lock on FOLDER/train.lock, a second is refused.
//
// The kernel releases the lock when the process ends, however it ends; the file stays. The lock is
// an open-file-description lock, which NFS and most cluster file systems pass to their server. On
// a file system without locks (Lustre mounted without `flock`) a warning is logged and nothing is
// held.
//
// Threads   one at a time.
// Failure   Error: kBusy with the holder's host and process id, kIo when the file cannot be made.
#pragma once

#include <filesystem>

namespace neap::train {

class OutputLock {
 public:
  /// Makes the folder where it is missing and takes its lock without waiting.
  explicit OutputLock(const std::filesystem::path& folder);
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  ~OutputLock();

 private:
  int file_ = -1;
};

}  // namespace neap::train
