// The two readers behind trace::read, one for each family of files.
#pragma once

#include "base/input.h"
#include "trace/recording.h"

namespace neap::trace {

/// Called now and then with the Input's consumed(); draws progress.
class ReadProgress {
 public:
  virtual ~ReadProgress() = default;
  virtual void update(std::uint64_t consumed) = 0;
};

struct ReadContext {
  Bytes memory_limit;                ///< never zero
  ReadProgress* progress = nullptr;  ///< may be null
};

/// Neap's own format; the input stands at the file header.
[[nodiscard]] Result<Recording> read_neap_trace(Input& input, const ReadContext& context);
/// PyTorch's pickle; the input stands at its first instruction.
[[nodiscard]] Result<Recording> read_torch_snapshot(Input& input, const ReadContext& context);
[[nodiscard]] Status over_memory_limit(const Input& input, Bytes limit);

}  // namespace neap::trace
