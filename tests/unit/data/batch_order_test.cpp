#include "data/batch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace neap::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Rows = std::vector<std::size_t>;

BatchOrder order(Rows rows, OrderOptions options) {
  return BatchOrder::make(std::move(rows), std::move(options)).value();
}

TEST(BatchOrder, VisitsEveryRowOnceAnEpochAndOnlyDependsOnTheSeed) {
  const BatchOrder all = order({10}, {3, true, 7});
  EXPECT_EQ(all.steps_per_epoch(), 3);
  std::set<std::size_t> seen;
  for (std::int64_t step = 0; step < 3; ++step) {
    for (const std::size_t row : all.batch(step)) EXPECT_TRUE(seen.insert(row).second);
  }
  EXPECT_EQ(seen.size(), 9U);
  const Rows late = all.batch(8);
  EXPECT_EQ(order({10}, {3, true, 7}).batch(8), late) << "without visiting what came before";
  EXPECT_EQ(order({4, 6}, {3, true, 7}).batch(8), late) << "files make no difference";
  EXPECT_NE(order({10}, {3, true, 8}).batch(8), late);
  EXPECT_EQ(order({10}, {3, false, 7}).batch(4), (Rows{3, 4, 5}));
  EXPECT_THAT(BatchOrder::make({2}, {3, true, 7}).status().message(), HasSubstr("2 rows, fewer"));
}

// What a checkpoint of an earlier build goes on with.
TEST(BatchOrder, StaysAsItWas) {
  const BatchOrder all = order({10}, {5, true, 1});
  EXPECT_THAT(all.batch(0), ElementsAre(6, 5, 9, 3, 7));
  EXPECT_THAT(all.batch(3), ElementsAre(1, 2, 6, 9, 4));
}

std::map<std::size_t, std::size_t> counts(const BatchOrder& all, std::int64_t first,
                                          std::int64_t end) {
  std::map<std::size_t, std::size_t> out;
  for (std::int64_t step = first; step < end; ++step)
    for (const std::size_t row : all.batch(step)) ++out[row];
  return out;
}

TEST(WeightedOrder, FilesHaveTheirShareOfEachEpoch) {
  for (const bool shuffle : {true, false}) {
    // Rows 0 to 3 are the first file's, half of each epoch; 4 to 19 the second's.
    const BatchOrder all = order({4, 16}, {5, shuffle, 3, {0.5, 0.5}});
    ASSERT_EQ(all.steps_per_epoch(), 4);
    std::map<std::size_t, std::size_t> sum;
    for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
      std::size_t first = 0;
      for (const auto& [row, count] : counts(all, epoch * 4, epoch * 4 + 4)) {
        first += row < 4 ? count : 0;
        sum[row] += count;
      }
      EXPECT_EQ(first, 10U) << "epoch " << epoch;
    }
    for (const auto& [row, count] : sum)
      EXPECT_EQ(count, row < 4 ? 20U : 5U) << "rows of one file come equally often";
  }
}

TEST(WeightedOrder, IsAFunctionOfTheStep) {
  const OrderOptions options{6, true, 9, {0.2, 0.7, 0.1}};
  const BatchOrder through = order({30, 5, 25}, options);
  for (std::int64_t step = 0; step < 50; ++step)
    EXPECT_EQ(order({30, 5, 25}, options).batch(step), through.batch(step)) << step;
}

TEST(WeightedOrder, WithoutShufflingFilesAlternate) {
  const BatchOrder all = order({6, 2}, {4, false, 0, {0.5, 0.5}});
  EXPECT_THAT(all.batch(0), ElementsAre(0, 6, 1, 7));
  EXPECT_THAT(all.batch(1), ElementsAre(2, 6, 3, 7));
  EXPECT_THAT(all.batch(2), ElementsAre(4, 6, 5, 7)) << "goes on where the epoch ended";
}

TEST(WeightedOrder, ASmallShareIsOneRowAtLeast) {
  const BatchOrder all = order({3, 3, 94}, {100, true, 0, {0.000001, 0.000001, 0.999998}});
  std::size_t first = 0, second = 0;
  for (const std::size_t row : all.batch(0)) {
    first += row < 3 ? 1 : 0;
    second += row >= 3 && row < 6 ? 1 : 0;
  }
  EXPECT_EQ(first, 1U);
  EXPECT_EQ(second, 1U);
}

TEST(WeightedOrder, AFileWithoutRowsIsRefused) {
  EXPECT_THAT(BatchOrder::make({3, 0}, {1, true, 0, {0.5, 0.5}}).status().message(),
              HasSubstr("Number 2 of data.train_files has no rows"));
  EXPECT_TRUE(BatchOrder::make({3, 0}, {1, true, 0}).ok());
}

}  // namespace
}  // namespace neap::data
