#include "step/model/page_table.h"

#include <algorithm>
#include <utility>

namespace neap::step {

CacheShape cache_shape(std::int64_t rows, std::int64_t row_tokens, std::int64_t total_tokens) {
  const CacheShape slots{rows, row_tokens};
  const CacheShape paged{rows, row_tokens, total_tokens / kPageTokens};
  return paged.paged() && paged.tokens() < slots.tokens() ? paged : slots;
}
CacheShape cache_shape(const spec::Job& job) {
  return cache_shape(job.rollout_batch(), job.max_sequence_length(), job.rollout.max_total_tokens);
}

PageTable::PageTable(const CacheShape& shape)
    : row_pages_(shape.row_pages()),
      rows_(static_cast<std::size_t>(shape.rows)),
      table_(static_cast<std::size_t>(shape.rows * row_pages_)),
      users_(static_cast<std::size_t>(shape.pages + 1)) {
  for (std::int64_t page = shape.pages; page > 0; --page) free_.push_back(page);
}

std::optional<std::int64_t> PageTable::start(std::int64_t row, const RowStart& sequence) {
  const std::int64_t filled = sequence.prompt_tokens / kPageTokens;
  const auto like = std::find_if(rows_.begin(), rows_.end(), [&](const Row& other) {
    return other.used && other.prompt == sequence.prompt;
  });
  const std::int64_t shared = like == rows_.end() ? 0 : filled;
  if (pages_of(sequence.tokens) - shared + used_rows_ > free_pages()) return std::nullopt;
  for (std::int64_t i = 0; i < shared; ++i) {
    const std::int64_t page = entry(like - rows_.begin(), i);
    entry(row, i) = page;
    ++users_of(page);
  }
  row_of(row) = {true, sequence.prompt, filled, shared, shared};
  ++used_rows_;
  changed_ = true;
  (void)grow(row, sequence.tokens);
  return shared * kPageTokens;
}

bool PageTable::grow(std::int64_t row, std::int64_t tokens) {
  Row& r = row_of(row);
  const std::int64_t wanted = pages_of(tokens);
  if (wanted - r.pages > free_pages()) return false;
  for (; r.pages < wanted; ++r.pages) {
    const std::int64_t page = free_.back();
    free_.pop_back();
    users_of(page) = 1;
    entry(row, r.pages) = page;
    changed_ = true;
  }
  return true;
}

void PageTable::end(std::int64_t row) {
  Row& r = row_of(row);
  if (!r.used) return;
  for (std::int64_t i = 0; i < r.pages; ++i) {
    const std::int64_t page = std::exchange(entry(row, i), 0);
    if (--users_of(page) == 0) free_.push_back(page);
  }
  r = {};
  --used_rows_;
  changed_ = true;
}

void PageTable::move(std::int64_t from, std::int64_t to) {
  for (std::int64_t i = 0; i < row_pages_; ++i) entry(to, i) = std::exchange(entry(from, i), 0);
  row_of(to) = std::exchange(row_of(from), {});
  changed_ = true;
}

std::int64_t PageTable::page(std::int64_t row, std::int64_t i) const {
  return i < row_pages_ ? table_[static_cast<std::size_t>(row * row_pages_ + i)] : 0;
}
std::int64_t PageTable::written_page(std::int64_t row, std::int64_t i) const {
  return i < row_of(row).shared ? 0 : page(row, i);
}
std::int64_t PageTable::last_prompt_page(std::int64_t row) const {
  return page(row, row_of(row).filled);
}
bool PageTable::take_change() {
  return std::exchange(changed_, false);
}

}  // namespace neap::step
