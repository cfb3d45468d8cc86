// Text in columns, for people.
//
// Threads   any.
#pragma once

#include <string>
#include <vector>

namespace neap::cli {

/// Columns as wide as their widest cell; the first to the left, the others to the right. At least one line; all have as many
/// cells.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& lines);

}  // namespace neap::cli
