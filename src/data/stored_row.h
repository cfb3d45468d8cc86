// A row for training, and its encoding as bytes of a RowStore.
//
// Threads   values.
//
// Failure   kCorrupt for bytes that do not encode a row.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::data {

struct StoredRow {
  /// Texts that the task needs: prompt; prompt and response; or prompt, chosen and rejected.
  std::vector<std::vector<std::int64_t>> texts;
  std::vector<bool> mask;  ///< of the last text; may be empty
  float margin = 0;
  std::string json;  ///< the whole row if something reads it; else empty

  friend bool operator==(const StoredRow&, const StoredRow&) = default;
};

/// An id takes one byte per 7 bits. Ids are not negative.
[[nodiscard]] std::string pack(const StoredRow& row);
[[nodiscard]] Result<StoredRow> unpack(std::string_view bytes);

}  // namespace neap::data
