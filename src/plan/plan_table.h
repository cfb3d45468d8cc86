// A table of text. Internal to plan/.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"

namespace neap::plan {

/// Columns as wide as their widest cell; the first is set left, the others right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void rule() { rules_.push_back(rows_.size()); }
  [[nodiscard]] std::string text() const {
    std::vector<std::size_t> width(rows_.front().size(), 0);
    for (const auto& row : rows_)
      for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    std::size_t total = 0;
    for (const std::size_t w : width) total += w + 2;
    std::string out;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (std::find(rules_.begin(), rules_.end(), r) != rules_.end() || r == 1)
        out += std::string(total - 2, '-') + "\n";
      std::string line;
      for (std::size_t i = 0; i < rows_[r].size(); ++i) {
        line += i == 0 ? format("{:<{}}", rows_[r][i], width[i])
                       : format("  {:>{}}", rows_[r][i], width[i]);
      }
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> rules_;
};

}  // namespace neap::plan
