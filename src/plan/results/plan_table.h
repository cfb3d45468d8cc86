// A text table with rules. Internal to plan/.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/text_table.h"

namespace neap::plan {

/// As table_text(), with a rule below the header.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void rule() { rules_.push_back(rows_.size()); }
  [[nodiscard]] std::string text() const { return table_text(rows_, rules_); }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> rules_{1};
};

}  // namespace neap::plan
