// Pages of a KV cache: which tokens of which rows they hold.
//
// Pages     kPageTokens tokens of a row. A row takes pages as it grows. Rows that start with the same
//           prompt share the pages that the prompt fills. A page is free once no row uses it.
// Page 0    belongs to no row. Tokens that no row keeps are written there: those of idle rows, padding,
//           and tokens of shared pages that another row has written.
// Threads   one at a time.
// Cost      a few vector operations per page; start() compares the prompts of all rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/decoding_sizes.h"
#include "spec/job/job.h"

namespace neap::step {

inline constexpr std::int64_t kPageTokens = kernels::decoding::kPageTokens;
static_assert(kPageTokens == spec::kCachePageTokens);
/// The part of the cache's tag that holds the device's page table.
inline constexpr std::string_view kPageTablePart = "pages";
/// Pages of so many tokens.
[[nodiscard]] constexpr std::int64_t pages_of(std::int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

/// The size of a KV cache.
struct CacheShape {
  std::int64_t rows = 0;        ///< sequences that are decoded together
  std::int64_t row_tokens = 0;  ///< of the longest sequence
  std::int64_t pages = 0;       ///< for all rows; 0: each row has room for the longest sequence

  [[nodiscard]] bool paged() const { return pages > 0; }
  [[nodiscard]] std::int64_t row_pages() const { return pages_of(row_tokens); }
  [[nodiscard]] std::int64_t tokens() const {
    return paged() ? (pages + 1) * kPageTokens : rows * row_tokens;
  }
};
/// A cache for rows of so many tokens, or with pages of `total_tokens` if they take less memory.
[[nodiscard]] CacheShape cache_shape(std::int64_t rows, std::int64_t row_tokens,
                                     std::int64_t total_tokens);
/// The cache of a job's rollouts.
[[nodiscard]] CacheShape cache_shape(const spec::Job& job);

/// A sequence that starts in a row.
struct RowStart {
  std::size_t prompt = 0;  ///< equal prompts have the same number
  std::int64_t prompt_tokens = 0;
  std::int64_t tokens = 0;  ///< that the row needs room for
};

class PageTable {
 public:
  PageTable() = default;
  explicit PageTable(const CacheShape& shape);

  /// Starts a sequence. Returns how many of its first tokens other rows have stored. Unset: too few
  /// pages are free, if each of the other rows may need another one.
  [[nodiscard]] std::optional<std::int64_t> start(std::int64_t row, const RowStart& sequence);
  /// Makes room for so many tokens. Returns false, and takes no page, if too few are free.
  [[nodiscard]] bool grow(std::int64_t row, std::int64_t tokens);
  void end(std::int64_t row);
  void move(std::int64_t from, std::int64_t to);

  /// The page of a row's tokens [i * kPageTokens, (i + 1) * kPageTokens); 0: none.
  [[nodiscard]] std::int64_t page(std::int64_t row, std::int64_t i) const;
  /// The same where the row's prompt is written: 0 for pages that other rows have written.
  [[nodiscard]] std::int64_t written_page(std::int64_t row, std::int64_t i) const;
  /// The page with the prompt's last tokens, if the prompt does not fill it; else the next one.
  [[nodiscard]] std::int64_t last_prompt_page(std::int64_t row) const;
  [[nodiscard]] std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  /// Pages of all rows, row after row (CacheShape::row_pages() each).
  [[nodiscard]] const std::vector<std::int64_t>& table() const { return table_; }
  /// Whether the table has changed since the last call.
  [[nodiscard]] bool take_change();

 private:
  struct Row {
    bool used = false;
    std::size_t prompt = 0;
    std::int64_t filled = 0;  // pages that the prompt fills
    std::int64_t shared = 0;  // first pages that other rows have written
    std::int64_t pages = 0;
  };
  [[nodiscard]] const Row& row_of(std::int64_t row) const {
    return rows_[static_cast<std::size_t>(row)];
  }
  [[nodiscard]] Row& row_of(std::int64_t row) { return rows_[static_cast<std::size_t>(row)]; }
  [[nodiscard]] std::int64_t& entry(std::int64_t row, std::int64_t i) {
    return table_[static_cast<std::size_t>(row * row_pages_ + i)];
  }
  [[nodiscard]] std::int64_t& users_of(std::int64_t page) {
    return users_[static_cast<std::size_t>(page)];
  }

  std::int64_t row_pages_ = 0;
  std::vector<Row> rows_;
  std::vector<std::int64_t> table_;
  std::vector<std::int64_t> users_;  // rows that use each page
  std::vector<std::int64_t> free_;
  std::int64_t used_rows_ = 0;
  bool changed_ = true;
};

}  // namespace neap::step
