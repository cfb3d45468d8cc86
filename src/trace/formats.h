// The two readers of trace::read, one for each family of formats.
#pragma once

#include "base/input.h"
#include "trace/recording.h"

namespace neap::trace {

/// Shows progress; called regularly with the Input's consumed().
class ReadProgress {
 public:
  virtual ~ReadProgress() = default;
  virtual void update(std::uint64_t consumed) = 0;
};

struct ReadContext {
  Bytes memory_limit;                ///< never zero
  ReadProgress* progress = nullptr;  ///< may be null
};

/// Reads Neap's own format. The input is at the file header.
[[nodiscard]] Result<Recording> read_neap_trace(Input& input, const ReadContext& context);
/// Reads PyTorch's pickle. The input is at its first instruction.
[[nodiscard]] Result<Recording> read_torch_snapshot(Input& input, const ReadContext& context);
[[nodiscard]] Status over_memory_limit(const Input& input, Bytes limit);

}  // namespace neap::trace
