// Which sequences go together where micro-batches are bounded by tokens.
#include "step/model/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "spec/ranks/context_parallel.h"

namespace neap::step {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(Packing, LongestFirstIntoTheFirstWithRoom) {
  const PackingLimits limits{1000, 8};
  EXPECT_EQ(pack_rows({900, 100, 500, 400, 300, 700}, limits, 1),
            (std::vector<Numbers>{{0, 1}, {4, 5}, {2, 3}}));
  EXPECT_EQ(pack_rows({600, 600, 600, 600, 600}, limits, 1).size(), 5U);
  EXPECT_TRUE(pack_rows({}, limits, 1).empty());
  EXPECT_EQ(pack_rows({0, 5, 0}, limits, 1), (std::vector<Numbers>{{1}}));
}

TEST(Packing, RandomRowsAreWithinTheLimits) {
  std::mt19937_64 random(1);
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const std::int64_t of_row = number(1, 2);
    const SequenceLimits lengths{number(2, 300), number(1, 299), of_row};
    const std::int64_t rows = number(1, 200);
    const std::int64_t budget = lengths.longest * of_row * number(1, 20) + number(0, 50);
    const PackingLimits limits = PackingLimits::of(budget, rows, lengths);
    Numbers tokens;
    for (std::int64_t i = 0; i < rows; ++i)
      tokens.push_back(number(of_row, lengths.longest * of_row));
    const std::vector<Numbers> packed = pack_rows(tokens, limits, of_row);
    Numbers seen;
    std::int64_t half_empty = 0;
    for (const Numbers& together : packed) {
      std::int64_t sum = 0;
      for (const std::int64_t row : together) sum += tokens[static_cast<std::size_t>(row)];
      EXPECT_LE(sum, limits.tokens);
      EXPECT_LE(std::ssize(together) * of_row, limits.sequences);
      EXPECT_TRUE(std::is_sorted(together.begin(), together.end()));
      half_empty += 2 * sum <= limits.tokens && std::ssize(together) * of_row < limits.sequences;
      seen.insert(seen.end(), together.begin(), together.end());
    }
    EXPECT_LE(half_empty, 1) << "two of them would be one";
    std::sort(seen.begin(), seen.end());
    Numbers all(static_cast<std::size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
  }
}

// What a plan counts holds what any rows can be packed to.
TEST(Packing, TheExtremesOfAPlanBoundEveryMicroBatch) {
  const SequenceLimits lengths{96, 64, 1};
  const LayoutOptions smaller{.smaller = {{400, 400}, {20, 20}, {20, 7}}};
  const PackedLayout layout = extreme_layout(100, 1000, lengths, smaller);
  const PackingLimits limits = PackingLimits::of(1000, 100, lengths);
  ASSERT_GT(layout.micro_batches.size(), 2U);
  const auto size = [&](const MicroBatch& m, const Numbers& starts) {
    return starts[static_cast<std::size_t>(m.first + m.count)] -
           starts[static_cast<std::size_t>(m.first)];
  };
  EXPECT_EQ(layout.micro_batches.front().count, limits.sequences);
  EXPECT_EQ(layout.micro_batches.back().count, 11) << "of 96 tokens but one";
  std::int64_t full = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> asides;
  for (const MicroBatch& m : layout.micro_batches) {
    const std::int64_t tokens = size(m, layout.starts), read = size(m, layout.counts);
    EXPECT_EQ(tokens < 1000, m.aside);
    full += tokens == 1000;
    if (m.aside) {
      asides.emplace_back(tokens, read);
    } else {
      EXPECT_EQ(read, std::min<std::int64_t>(tokens, m.count * 64));
    }
  }
  EXPECT_EQ(full, 10) << "of 100 rows 10 fit at full lengths";
  const std::vector<std::pair<std::int64_t, std::int64_t>> asked = {{400, 400}, {20, 20}, {20, 7}};
  EXPECT_EQ(asides, asked);
  // Everything in one micro-batch.
  const PackedLayout one = extreme_layout(5, 1000, lengths, smaller);
  EXPECT_EQ(size(one.micro_batches.front(), one.starts), 5 * 96);
  EXPECT_TRUE(one.micro_batches[1].aside);
  // Pairs stay together.
  const PackedLayout pairs = extreme_layout(40, 1000, {96, 64, 2});
  EXPECT_EQ(pairs.micro_batches.back().count, 6);
  std::int64_t first = 0;
  for (const MicroBatch& m : pairs.micro_batches) {
    if (m.first == pairs.micro_batches.back().first && first > m.first) continue;  // again
    EXPECT_EQ(m.first, first);
    first += m.count;
  }
  EXPECT_EQ(std::ssize(pairs.starts) - 1, 2 * first);
}

TEST(Packing, MicroBatchesInGroups) {
  std::vector<MicroBatch> cuts = {{0, 2}, {2, 2}, {4, 2}, {6, 2}, {8, 1}};
  EXPECT_EQ(groups_of(cuts, 1), 5);
  EXPECT_EQ(groups_of(cuts, 2), 3);
  EXPECT_EQ(groups_of(cuts, 5), 1);
  EXPECT_EQ(group_size(cuts, 9), 5U) << "no more than there are";
  EXPECT_EQ(groups_alike(cuts, 2), 2U);
  EXPECT_EQ(groups_alike(Group(cuts).subspan(2), 2), 1U) << "one micro-batch is left";
  EXPECT_EQ(groups_alike(Group(cuts).subspan(3), 1), 1U) << "the next one has fewer rows";
  cuts.insert(cuts.begin() + 2, {8, 1, 0, true});
  EXPECT_EQ(groups_of(cuts, 2), 4) << "what counts for memory alone is a group";
  EXPECT_EQ(group_size(cuts, 9), 5U);
}

// A group of a run may have the most sequences in all of its micro-batches.
TEST(Packing, TheExtremesOfAPlanBoundEveryGroup) {
  const SequenceLimits lengths{96, 64, 1};
  const std::int64_t most = most_micro_batches(100, 1000, lengths);
  for (const std::int64_t together : {1, 3, 10, 40}) {
    const PackedLayout layout = extreme_layout(100, 1000, lengths, {.together = together});
    const MicroBatch first = layout.micro_batches.front();
    std::int64_t of_most = 0, counted = 0;
    for (const MicroBatch& micro : layout.micro_batches) {
      of_most += micro.first == first.first;
      counted += !micro.aside;
    }
    EXPECT_EQ(of_most, std::min(together, most));
    EXPECT_EQ(counted, most);
  }
}

// Of ranks that divide sequences: whatever is packed, no rank has more rows than in a micro-batch of the plan, and the
// budget's share and one row a sequence bound them.
TEST(Packing, TheExtremesOfAPlanBoundTheRowsOfEveryRank) {
  std::mt19937_64 random(2);
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const std::int64_t ranks = number(2, 8), of_row = number(1, 2), longest = number(2, 200);
    const SequenceLimits lengths{longest, number(1, longest - 1), of_row};
    const std::int64_t rows = number(1, 60);
    const std::int64_t budget = longest * of_row * number(1, 8) + number(0, 50);
    const PackingLimits limits = PackingLimits::of(budget, rows, lengths);
    const PackedLayout layout = extreme_layout(rows, budget, lengths, {.ranks = ranks});
    ASSERT_EQ(layout.lengths.size() + 1, layout.starts.size());
    ASSERT_EQ(layout.starts.size(), layout.counts.size());
    std::int64_t most = 0;
    for (const MicroBatch& m : layout.micro_batches) {
      std::int64_t all = 0;
      for (std::int64_t i = m.first * of_row; i < (m.first + m.count) * of_row; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_GE(layout.lengths[at], 1);
        ASSERT_LE(layout.lengths[at], longest);
        const std::int64_t own = spec::rows_of_each(layout.lengths[at], ranks);
        ASSERT_EQ(layout.starts[at + 1] - layout.starts[at], own);
        all += own;
      }
      EXPECT_LE(all, (limits.tokens + limits.sequences * (ranks - 1)) / ranks);
      most = std::max(most, all);
    }
    // One token each, and lengths of a token more than the ranks divide, are those that round up most.
    for (const std::int64_t odd : {std::int64_t{1}, ranks + 1, number(1, longest)}) {
      Numbers tokens;
      for (std::int64_t i = 0; i < rows; ++i) tokens.push_back(std::min(odd, longest) * of_row);
      for (const Numbers& together : pack_rows(tokens, limits, of_row))
        EXPECT_LE(std::ssize(together) * of_row * spec::rows_of_each(std::min(odd, longest), ranks),
                  most)
            << odd << " tokens each, " << ranks << " ranks, budget " << budget;
    }
  }
}

// Budgets below the number of sequences that usually go together, too.
TEST(Packing, EverySequenceOfAPlanHasTokens) {
  for (std::int64_t longest = 2; longest <= 40; ++longest) {
    for (std::int64_t budget = longest; budget <= 3 * longest; ++budget) {
      for (const std::int64_t of_row : {1, 2}) {
        const SequenceLimits lengths{longest, longest - 1, of_row};
        const PackedLayout layout =
            extreme_layout(20, budget * of_row, lengths, {.further = {of_row}});
        for (std::size_t i = 1; i < layout.starts.size(); ++i) {
          const std::int64_t tokens = layout.starts[i] - layout.starts[i - 1];
          ASSERT_GE(tokens, 1) << longest << " " << budget << " " << of_row;
          ASSERT_LE(tokens, longest);
        }
      }
    }
  }
}

}  // namespace
}  // namespace neap::step
