// Text in columns, for people.
//
// Threads   any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace neap {

/// Columns as wide as their widest cell; the first to the left, the others to the right. At least one line; all have as many
/// cells. `rules`: lines above which a rule is drawn.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& lines,
                                     const std::vector<std::size_t>& rules = {});

}  // namespace neap
