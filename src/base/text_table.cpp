#include "base/text_table.h"

#include <algorithm>

namespace neap {

std::string table_text(const std::vector<std::vector<std::string>>& lines,
                       const std::vector<std::size_t>& rules) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::size_t width = 0;
  for (const std::size_t w : widths) width += w + 2;
  std::string out;
  for (std::size_t l = 0; l < lines.size(); ++l) {
    if (std::find(rules.begin(), rules.end(), l) != rules.end())
      out += std::string(width - 2, '-') + "\n";
    for (std::size_t i = 0; i < lines[l].size(); ++i) {
      const std::string space(widths[i] - lines[l][i].size(), ' ');
      out += i == 0 ? lines[l][i] + space : "  " + space + lines[l][i];
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  return out;
}

}  // namespace neap
