// One safetensors file of a checkpoint that all ranks write together: each what it has, in place. The bytes of the
// file do not depend on the ranks.
//
// Places    The first rank makes the file. Ranks that see it, as processes of its machine, write into it; what the
//           others have the first one gets from them. Two machines never write into one file: a network file system
//           need not merge what they write into one of its pages, or into one of its objects.
// Checksums A piece of 16 MiB that one rank writes whole is hashed on the way. The others are read again from the
//           page cache, by all ranks of the machine together.
// Failure   CollectiveError on every rank if one fails, and the file is as it was; of one rank alone Error.
// Threads   one; a rank that writes uses libtorch's.
// Cost      host memory: that of model::write_tensors; 16 MiB more where ranks do not see the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/safetensors.h"
#include "model/tensor_io.h"
#include "model/unit_cuts.h"
#include "parallel/communicator.h"

namespace neap::train {

/// Elements of one tensor of a file that a rank writes.
struct FilePart {
  std::size_t tensor = 0;  ///< of the file's
  at::Tensor values;       ///< (n,) of the file's dtype, on any device
  /// Where they are in the file's tensor, ascending in `values`; what is in no run is not written.
  std::vector<model::PartRun> runs;
};
using PartVisit = std::function<void(const FilePart& part)>;
/// Visits what a rank writes, part by part.
using PartSource = std::function<void(const PartVisit& visit)>;

class CollectiveFile {
 public:
  /// Every rank gives the same but for `path`, which is the first one's. As SafetensorsWriter.
  CollectiveFile(parallel::Communicator& ranks, const std::filesystem::path& path,
                 const std::vector<model::TensorInfo>& tensors,
                 const std::map<std::string, std::string>& metadata, model::Sync sync);

  /// Every rank writes its parts. Once; `source` makes no collective call.
  void write(const PartSource& source);
  /// Every element was written once.
  void commit();

 private:
  void write_own(const PartSource& source);
  /// Of a rank that does not see the file to the first one; all others receive.
  [[nodiscard]] Status send(const PartSource& source);
  void receive(int from, Status& status);
  /// Tells all ranks what each has written.
  void exchange();
  [[nodiscard]] std::vector<model::TensorWrite> segments(const FilePart& part) const;

  parallel::Communicator& ranks_;
  std::vector<std::int64_t> elements_;            // of the tensors
  std::optional<model::SafetensorsWriter> file_;  // none: this rank does not see it
  std::vector<double> sees_;                      // 1 or 0, one a rank
};

}  // namespace neap::train
