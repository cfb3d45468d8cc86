// The tensor files of one checkpoint, which all ranks write together.
//
// Model     add() copies what a rank writes if host memory has room, else it writes it immediately.
//           Models may change afterwards. commit() writes the copies. In a job of one rank it may
//           run on any thread.
// Threads   one at a time.
// Failure   Error; CollectiveError if the call is collective. Files are then unfinished.
// Cost      host memory: the copies, and that of weights::write_tensors.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "parallel/communicator.h"
#include "train/collective_files.h"
#include "train/host_copies.h"

namespace neap::train {

class SavedFiles {
 public:
  /// Without `copies`, add() writes at once. Both must outlive it.
  explicit SavedFiles(parallel::Communicator& ranks, HostCopies* copies = nullptr)
      : ranks_(&ranks), copies_(copies) {}

  /// Every rank calls it. `finished` runs on the first rank when the files are complete.
  void add(CollectiveFiles files, const PartSource& source, std::function<void()> finished = {});
  /// Whether all data are in copies that are not written yet.
  [[nodiscard]] bool copied() const;
  /// Why ranks write immediately although they have `copies`; success: they do not.
  [[nodiscard]] const Status& without_copy() const { return without_copy_; }

  /// Writes the copies with this number of threads, and completes the files. Every rank calls it. It
  /// needs no device.
  void commit(std::size_t threads);

 private:
  struct Entry {
    CollectiveFiles files;
    PartSource copied;  // empty: written
    std::function<void()> finished;
  };
  [[nodiscard]] bool takes_copy(const CollectiveFiles& files, const PartSource& source);

  parallel::Communicator* ranks_;
  HostCopies* copies_;
  Status without_copy_;
  std::vector<Entry> entries_;
};

}  // namespace neap::train
