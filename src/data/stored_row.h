// A row as training takes it, and as bytes of a RowStore.
//
// Threads   values.   Failure   kCorrupt for bytes that are no row.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::data {

struct StoredRow {
  /// What the row's task has: prompt; prompt and response; prompt, chosen and rejected.
  std::vector<std::vector<std::int64_t>> texts;
  std::vector<bool> mask;  ///< of the last text; may be empty
  float margin = 0;
  std::string json;  ///< the whole row, where something reads it; else empty

  friend bool operator==(const StoredRow&, const StoredRow&) = default;
};

/// Ids take one byte for each 7 bits. None is negative.
[[nodiscard]] std::string pack(const StoredRow& row);
[[nodiscard]] Result<StoredRow> unpack(std::string_view bytes);

}  // namespace neap::data
