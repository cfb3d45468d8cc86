// Text in aligned columns, for people.
//
// Threads   any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace neap {

/// Each column is as wide as its widest cell. The first column is left-aligned, the others
/// right-aligned. There is at least one line, and all lines have the same number of cells. `rules`:
/// lines above which a rule is drawn.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& lines,
                                     const std::vector<std::size_t>& rules = {});

}  // namespace neap
