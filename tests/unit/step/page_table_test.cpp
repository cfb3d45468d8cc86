#include "step/model/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace neap::step {
namespace {

// Pages as sets of the rows that use them.
class PageModel {
 public:
  PageModel(const CacheShape& shape, std::uint64_t seed)
      : shape_(shape), table_(shape), random_(seed) {}

  void act() {
    const std::int64_t row = between(0, shape_.rows - 1);
    const auto found = rows_.find(row);
    const std::int64_t kind = between(0, 9);
    if (found == rows_.end()) {
      start(row);
    } else if (kind < 6) {
      grow(row, found->second);
    } else if (kind < 9) {
      table_.end(row);
      rows_.erase(found);
      ++ended;
    } else {
      move(row);
    }
    check();
  }
  void end_all() {
    for (const auto& [row, r] : rows_) table_.end(row);
    rows_.clear();
    check();
    EXPECT_EQ(table_.free_pages(), shape_.pages);
  }
  std::int64_t refused = 0, shared = 0, ended = 0, moved = 0;

 private:
  struct Row {
    std::size_t prompt = 0;
    std::int64_t prompt_tokens = 0, stored = 0;
    std::vector<std::int64_t> pages;
  };
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  [[nodiscard]] std::int64_t used_pages() const {
    std::set<std::int64_t> used;
    for (const auto& [row, r] : rows_) used.insert(r.pages.begin(), r.pages.end());
    return std::ssize(used);
  }
  void start(std::int64_t row) {
    Row r;
    r.prompt = static_cast<std::size_t>(between(0, 5));
    r.prompt_tokens = 40 * static_cast<std::int64_t>(r.prompt) + 1;
    const std::int64_t tokens = between(r.prompt_tokens, shape_.row_tokens);
    const auto like = std::find_if(rows_.begin(), rows_.end(), [&](const auto& other) {
      return other.second.prompt == r.prompt;
    });
    if (like != rows_.end()) {
      r.stored = r.prompt_tokens / kPageTokens * kPageTokens;
      r.pages.assign(like->second.pages.begin(),
                     like->second.pages.begin() + r.prompt_tokens / kPageTokens);
    }
    const std::int64_t more = pages_of(tokens) - std::ssize(r.pages);
    const bool fits = more + std::ssize(rows_) <= shape_.pages - used_pages();
    const auto stored = table_.start(row, {r.prompt, r.prompt_tokens, tokens});
    ASSERT_EQ(stored.has_value(), fits);
    if (!fits) {
      ++refused;
      return;
    }
    EXPECT_EQ(*stored, r.stored);
    if (r.stored > 0) ++shared;
    take_new(row, r, pages_of(tokens));
    rows_[row] = std::move(r);
  }
  // The row's new pages are free ones.
  void take_new(std::int64_t row, Row& r, std::int64_t pages) {
    while (std::ssize(r.pages) < pages) {
      const std::int64_t page = table_.page(row, std::ssize(r.pages));
      EXPECT_GT(page, 0);
      EXPECT_LE(page, shape_.pages);
      for (const auto& [other, of] : rows_)
        EXPECT_EQ(std::count(of.pages.begin(), of.pages.end(), page), 0);
      EXPECT_EQ(std::count(r.pages.begin(), r.pages.end(), page), 0);
      r.pages.push_back(page);
    }
  }
  void grow(std::int64_t row, Row& r) {
    const std::int64_t tokens = between(1, shape_.row_tokens);
    const std::int64_t more = pages_of(tokens) - std::ssize(r.pages);
    const bool fits = more <= shape_.pages - used_pages();
    ASSERT_EQ(table_.grow(row, tokens), fits);
    if (!fits) ++refused;
    if (fits) take_new(row, r, pages_of(tokens));
  }
  void move(std::int64_t from) {
    const std::int64_t to = between(0, shape_.rows - 1);
    if (rows_.contains(to)) return;
    table_.move(from, to);
    rows_[to] = rows_.at(from);
    rows_.erase(from);
    ++moved;
  }
  void check() {
    EXPECT_EQ(table_.free_pages(), shape_.pages - used_pages());
    std::vector<std::int64_t> table(static_cast<std::size_t>(shape_.rows * shape_.row_pages()));
    for (const auto& [row, r] : rows_) {
      std::copy(r.pages.begin(), r.pages.end(),
                table.begin() + static_cast<std::ptrdiff_t>(row * shape_.row_pages()));
      for (std::int64_t i = 0; i < shape_.row_pages(); ++i)
        EXPECT_EQ(table_.written_page(row, i),
                  i * kPageTokens < r.stored ? 0 : table_.page(row, i));
      const std::int64_t last = r.prompt_tokens / kPageTokens;
      EXPECT_EQ(table_.last_prompt_page(row), table_.page(row, last));
    }
    EXPECT_TRUE(table_.table() == table);
    changed_ = table_.take_change();
    EXPECT_FALSE(table_.take_change());
    if (table != last_) {
      EXPECT_TRUE(changed_);
    }
    last_ = table;
  }

  CacheShape shape_;
  PageTable table_;
  std::mt19937_64 random_;
  std::map<std::int64_t, Row> rows_;
  std::vector<std::int64_t> last_;
  bool changed_ = false;
};

TEST(PageTable, GivesPagesAsAModelOfSetsDoes) {
  std::int64_t refused = 0, shared = 0, ended = 0, moved = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const CacheShape shape{1 + static_cast<std::int64_t>(seed % 7), 400,
                           7 + static_cast<std::int64_t>(seed % 23)};
    PageModel model(shape, seed);
    for (int i = 0; i < 1000 && !::testing::Test::HasFailure(); ++i) model.act();
    model.end_all();
    if (::testing::Test::HasFailure()) return;
    refused += model.refused;
    shared += model.shared;
    ended += model.ended;
    moved += model.moved;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(shared, 1000);
  EXPECT_GT(ended, 1000);
  EXPECT_GT(moved, 1000);
}

TEST(PageTable, AJobHasPagesWhereTheyTakeLessMemory) {
  spec::Job job;
  job.task = spec::Task::kGrpo;
  job.data.train_batch_size = 8;
  job.data.max_prompt_length = 100;
  job.data.max_response_length = 300;
  job.rollout.n = 2;
  EXPECT_FALSE(cache_shape(job).paged());
  EXPECT_EQ(cache_shape(job).tokens(), 16 * 400);
  job.rollout.max_total_tokens = 3000;
  EXPECT_EQ(cache_shape(job).pages, 46);
  EXPECT_EQ(cache_shape(job).tokens(), 47 * 64);
  EXPECT_EQ(cache_shape(job).row_pages(), 7);
  job.rollout.max_total_tokens = 16 * 400;
  EXPECT_FALSE(cache_shape(job).paged());
}

}  // namespace
}  // namespace neap::step
