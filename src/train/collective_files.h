// Safetensors files of a checkpoint that all ranks write together: each what it has, in place. The bytes of the
// files do not depend on the ranks.
//
// Places    The first rank makes the files. Ranks that see them, as processes of its machine, write into them; what
//           the others have the first one gets from them. Two machines never write into one file: a network file system
//           need not merge what they write into one of its pages, or into one of its objects.
// Checksums A piece of 16 MiB that one rank writes whole is hashed on the way. The others are read again from the
//           page cache, by all ranks of the machine together.
// Failure   CollectiveError on every rank if one fails, and the files are as they were, but for those before one that
//           cannot be committed; of one rank alone Error.
// Threads   one; a rank that writes uses libtorch's.
// Cost      host memory: that of weights::write_tensors; 16 MiB more where ranks do not see the files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "parallel/communicator.h"
#include "weights/safetensors.h"
#include "weights/unit_cuts.h"

namespace neap::train {

/// Elements of one tensor of the files that a rank writes.
struct FilePart {
  std::size_t tensor = 0;  ///< its number
  at::Tensor values;       ///< (n,) of the file's dtype, on any device
  /// Where they are in the file's tensor, ascending in `values`; what is in no run is not written.
  std::vector<weights::PartRun> runs;
};
using PartVisit = std::function<void(const std::vector<FilePart>& parts)>;
/// Visits what a rank writes, some parts at a time.
using PartSource = std::function<void(const PartVisit& visit)>;

class CollectiveFiles {
 public:
  /// Every rank gives the same but for paths, which are the first one's. As SafetensorsWriter.
  CollectiveFiles(parallel::Communicator& ranks, const weights::TensorFiles& files,
                  const std::map<std::string, std::string>& metadata, weights::Sync sync);

  /// Every rank writes its parts. Once; `source` makes no collective call.
  void write(const PartSource& source);
  /// Every element was written once.
  void commit();

  /// Where bytes of a buffer go, in numbers that ranks send.
  struct Place {
    std::int64_t tensor = 0, offset = 0;  ///< in its file, bytes
    std::int64_t from = 0, bytes = 0;     ///< in the buffer
  };

 private:
  void join_first(const weights::TensorFiles& files,
                  const std::map<std::string, std::string>& metadata);
  void write_own(const PartSource& source);
  /// Of a rank that does not see the files to the first one; all others receive.
  [[nodiscard]] Status send(const PartSource& source);
  void receive(int from, Status& status);
  /// What every rank has written since the last call.
  [[nodiscard]] std::vector<double> exchange();
  void add(const std::vector<double>& all);
  void write_places(const std::vector<Place>& places, std::span<const std::byte> bytes);

  [[nodiscard]] bool sees() const { return !writers_.empty(); }

  parallel::Communicator& ranks_;
  std::vector<weights::TensorFiles::Place> tensors_;
  std::vector<std::int64_t> elements_;               // of the tensors
  std::vector<weights::SafetensorsWriter> writers_;  // none: this rank does not see the files
  std::vector<double> see_;                          // 1 or 0, one a rank
};

}  // namespace neap::train
