// Copies of a checkpoint's data in pinned host memory, so that training continues while they are
// written to files.
//
// Model     A copy is made for one set of files, by its number in the checkpoint. Its memory is kept
//           for the same files of the next checkpoint.
// Threads   one at a time; copies may be read by another one.
// Failure   Error.
// Cost      the bytes that this rank writes; host_pool.h has the time per fresh GiB.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "arena/host_storage.h"
#include "base/bytes.h"
#include "train/collective_files.h"

namespace neap::train {

class HostCopies {
 public:
  /// `arena` must outlive it.
  explicit HostCopies(arena::Arena& arena) : arena_(arena) {}

  /// Allocates memory for the parts that `source` visits. Fails if the budget or the machine lacks
  /// room.
  [[nodiscard]] Status make_room(std::size_t number, const PartSource& source);
  /// Copies the parts that `source` visits. Valid until the next call with this number.
  [[nodiscard]] PartSource copy(std::size_t number, const PartSource& source);
  /// Frees all memory. No copy may be in use.
  void release() { blocks_.clear(); }
  [[nodiscard]] Bytes bytes() const;

 private:
  arena::Arena& arena_;
  std::vector<std::unique_ptr<arena::HostStorage>> blocks_;  // one per number; null: none yet
};

}  // namespace neap::train
