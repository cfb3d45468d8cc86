#include "parallel/row_deal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace neap::parallel {
namespace {

using Rows = std::vector<std::int64_t>;

std::int64_t spread(const RowLists& lists, const Rows& lengths) {
  const Rows tokens = tokens_of(lists, lengths);
  const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
  return *most - *least;
}

TEST(RowDeal, TurnsDealBlocks) {
  EXPECT_EQ(rows_in_turns(8, 2, 2), (RowLists{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(rows_in_turns(4, 1, 2), (RowLists{{0, 2}, {1, 3}}));
  EXPECT_EQ(tokens_of(rows_in_turns(4, 1, 2), {1, 2, 3, 4}), (Rows{4, 6}));
}

TEST(RowDeal, TheLongestGoToWhoHasLeast) {
  // 10 and 9; of the second mini-batch the larger share goes to the rank that has less.
  EXPECT_EQ(balanced_rows({9, 1, 7, 2, 5, 1, 1, 1}, 4, 2), (RowLists{{0, 1, 5, 6}, {2, 3, 4, 7}}));
  EXPECT_EQ(balanced_rows({3, 3, 3, 3}, 4, 2), (RowLists{{0, 2}, {1, 3}})) << "as in turns";
  EXPECT_EQ(balanced_rows({7, 1, 2}, 3, 1), (RowLists{{0, 1, 2}}));
  EXPECT_EQ(balanced_rows({}, 4, 2), (RowLists{{}, {}}));
}

TEST(RowDeal, RanksHaveAsManyRowsOfEachMiniBatchAndAboutAsManyTokens) {
  std::mt19937_64 random(1);
  for (const std::int64_t ranks : {2, 3, 8}) {
    for (const std::int64_t each : {1, 4, 16}) {
      const std::int64_t mini_batch = ranks * each, rows = 3 * mini_batch;
      Rows lengths;
      std::lognormal_distribution<double> length(5, 1.2);
      for (std::int64_t i = 0; i < rows; ++i)
        lengths.push_back(1 + static_cast<std::int64_t>(length(random)));
      const RowLists lists = balanced_rows(lengths, mini_batch, ranks);
      EXPECT_EQ(lists, balanced_rows(lengths, mini_batch, ranks));
      Rows all;
      for (const Rows& list : lists) {
        EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
        ASSERT_EQ(std::ssize(list), rows / ranks);
        for (std::int64_t i = 0; i < std::ssize(list); ++i)
          EXPECT_EQ(list[static_cast<std::size_t>(i)] / mini_batch, i / each);
        all.insert(all.end(), list.begin(), list.end());
      }
      std::sort(all.begin(), all.end());
      for (std::int64_t i = 0; i < rows; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
      // Of few rows turns may be as even by chance.
      if (each < 16) continue;
      EXPECT_LT(4 * spread(lists, lengths), spread(rows_in_turns(rows, 1, ranks), lengths));
    }
  }
}

}  // namespace
}  // namespace neap::parallel
