// Names of the parts of ROLE.prefetch: buffers for offloaded or sharded blocks and tables of a
// model, and for offloaded layer inputs.
//
// Threads   values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/format.h"

namespace neap::step {

/// One block computes while the next one is loaded.
constexpr std::size_t kBlockSlots = 2;

enum class BufferOf : std::uint8_t { kWeights, kGradients, kInputs };

namespace detail {
constexpr std::string_view name_of(BufferOf what) {
  switch (what) {
    case BufferOf::kWeights:
      return "weights";
    case BufferOf::kGradients:
      return "gradients";
    case BufferOf::kInputs:
      break;
  }
  return "inputs";
}
}  // namespace detail

/// `slot` is below kBlockSlots. Inputs are those of a block, for a group of micro-batches.
[[nodiscard]] inline std::string block_buffer(BufferOf what, std::size_t slot) {
  return format("{}.{}", detail::name_of(what), slot);
}
[[nodiscard]] inline bool is_block_buffer(std::string_view name, BufferOf what) {
  return name.starts_with(detail::name_of(what));
}
/// For tables, which use the memory of all blocks' buffers in their turns.
[[nodiscard]] inline std::string table_buffer(BufferOf what) {
  return format("{}.table", detail::name_of(what));
}

}  // namespace neap::step
