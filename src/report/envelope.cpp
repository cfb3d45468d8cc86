#include "report/envelope.h"

#include <algorithm>
#include <optional>

namespace neap::report {

Envelope::Node Envelope::join(const Node& left, const Node& right) {
  const Node& top = right.high > left.high ? right : left;
  return {top.high, std::min(left.low, right.low), top.highest};
}

Envelope::Envelope(std::span<const std::uint64_t> high, std::span<const std::uint64_t> low)
    : size_(std::min(high.size(), low.size())) {
  if (size_ == 0) return;
  std::vector<Node> level(size_);
  for (std::size_t i = 0; i < size_; ++i)
    level[i] = {high[i], low[i], static_cast<std::uint32_t>(i)};
  levels_.push_back(std::move(level));
  while (levels_.back().size() > 1) {
    const std::vector<Node>& below = levels_.back();
    std::vector<Node> next((below.size() + 1) / 2);
    for (std::size_t i = 0; i < next.size(); ++i)
      next[i] = 2 * i + 1 < below.size() ? join(below[2 * i], below[2 * i + 1]) : below[2 * i];
    levels_.push_back(std::move(next));
  }
}

Envelope::Range Envelope::query(std::size_t begin, std::size_t end) const {
  std::optional<Node> left, right;
  const auto add_right = [](std::optional<Node>& into, const Node& node) {
    into = into ? join(*into, node) : node;
  };
  for (std::size_t level = 0; begin < end; ++level, begin /= 2, end /= 2) {
    if (begin % 2 == 1) add_right(left, levels_[level][begin++]);
    if (end % 2 == 1) {
      --end;
      right = right ? join(levels_[level][end], *right) : levels_[level][end];
    }
  }
  if (right) add_right(left, *right);
  return {left->highest, left->high, left->low};
}

}  // namespace neap::report
