// Safetensors files of a checkpoint that all ranks write together, each its own elements. The bytes
// of the files do not depend on the number of ranks.
//
// Places    The first rank creates the files. Ranks that see them, on the same machine, write into
//           them directly. Other ranks send their data to the first rank. Two machines never write
//           to one file, because a network file system may not merge writes to the same page or
//           object.
// Checksums A piece of 16 MiB that one rank writes whole is hashed while it is written. Other pieces
//           are read again from the page cache; the ranks of the machine share that work.
// Failure   CollectiveError on every rank if one fails; Error for a single rank. Files are
//           unchanged, except those before a file whose commit fails.
// Threads   one at a time; a rank that writes uses several.
// Cost      host memory: that of weights::write_tensors; 16 MiB more if some ranks do not see the
//           files.
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

/// Elements of one tensor that a rank writes.
struct FilePart {
  std::size_t tensor = 0;  ///< number among the tensors
  at::Tensor values;       ///< (n,) with the file's dtype, on any device
  /// The places of `values` in the tensor, in the order of `values`. Elements outside the runs are
  /// not written.
  std::vector<weights::PartRun> runs;
};
using PartVisit = std::function<void(const std::vector<FilePart>& parts)>;
/// Visits what a rank writes, some parts at a time.
using PartSource = std::function<void(const PartVisit& visit)>;

class CollectiveFiles {
 public:
  /// All ranks pass the same arguments except paths; the first rank's paths are used. Otherwise as
  /// SafetensorsWriter.
  CollectiveFiles(parallel::Communicator& ranks, const weights::TensorFiles& files,
                  const std::map<std::string, std::string>& metadata, weights::Sync sync);

  /// Every rank writes its parts, once. `source` must not make collective calls.
  void write(const PartSource& source);
  /// Requires that every element was written once.
  void commit();

  /// Whether every rank sees the files, as write_own() requires.
  [[nodiscard]] bool all_see() const;
  /// Writes this rank's parts with this number of threads. Not collective.
  void write_own(const PartSource& source, std::size_t threads);

  /// The destination of bytes of a buffer, as numbers that ranks can send.
  struct Place {
    std::int64_t tensor = 0, offset = 0;  ///< tensor in its file; offset in bytes
    std::int64_t from = 0, bytes = 0;     ///< position in the buffer; number of bytes
  };

 private:
  void join_first(const weights::TensorFiles& files,
                  const std::map<std::string, std::string>& metadata);
  /// A rank that does not see the files sends its parts to the first rank; all other ranks receive.
  [[nodiscard]] Status send(const PartSource& source);
  void receive(int from, Status& status);
  /// All-gathers what every rank has written since the last call.
  [[nodiscard]] std::vector<double> exchange();
  void add(const std::vector<double>& all);
  void write_places(const std::vector<Place>& places, std::span<const std::byte> bytes);

  [[nodiscard]] bool sees() const { return !writers_.empty(); }

  parallel::Communicator& ranks_;
  std::vector<weights::TensorFiles::Place> tensors_;
  std::vector<std::int64_t> elements_;               // per tensor
  std::vector<weights::SafetensorsWriter> writers_;  // empty if this rank does not see the files
  std::vector<double> see_;                          // 1 or 0 per rank: whether it sees the files
};

}  // namespace neap::train
