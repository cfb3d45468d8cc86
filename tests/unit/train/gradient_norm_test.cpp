#include "step/units/gradient_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "train/optimizer.h"
#include "unit_with_state.h"

namespace neap::train {
namespace {

using testing::spec_of;
using testing::unit_of;
using testing::zero_unit;

// A norm of all elements at once would have other last bits.
TEST(GradientNorm, HasTheSameBitsWhereverAUnitIsCutBetweenTiles) {
  const spec::OptimizerSpec spec = spec_of(spec::OptimizerConfig{});
  constexpr std::int64_t kElements = 2 * spec::kSumTile + 12'288;
  const OptimizerUnit whole = zero_unit(spec, unit_of({{kElements}}));
  at::manual_seed(5);
  at::Tensor(whole.gradients).normal_();
  std::vector<OptimizerUnit> parts;
  for (const auto& [first, count] :
       {std::pair{std::int64_t{0}, 2 * spec::kSumTile},
        std::pair{2 * spec::kSumTile, kElements - 2 * spec::kSumTile}}) {
    parts.push_back(zero_unit(spec, unit_of({{count}}), std::ssize(parts)));
    at::Tensor(parts.back().gradients)
        .narrow(0, 0, count)
        .copy_(whole.gradients.narrow(0, first, count));
  }
  ops::AtenOps ops(at::kCPU);
  const double norm = step::joint_norm(ops, step::piece_norms(ops, std::vector{whole}));
  EXPECT_EQ(norm, step::joint_norm(ops, step::piece_norms(ops, parts)));
  EXPECT_NEAR(norm, std::sqrt(static_cast<double>(kElements)), 3);
  EXPECT_EQ(std::ssize(step::norm_ranges(whole.unit, 0, kElements)), 3);
}

// Of a unit that ranks divide: pieces that are cut between tiles have the ranges of the whole.
TEST(GradientNorm, RangesAreCutBetweenTilesAndWhereTheSpreadChanges) {
  spec::FlatUnit unit;
  std::int64_t offset = 0;
  for (const auto& [elements, parts] :
       {std::pair{spec::kSumTile / 2, 1}, std::pair{2 * spec::kSumTile, 2},
        std::pair{std::int64_t{64}, 1}}) {
    unit.parameters.push_back({.name = "w",
                               .shape = {elements},
                               .offset = offset,
                               .spread = {.parts = parts, .summed = false}});
    offset += elements;
  }
  unit.elements = offset;
  std::vector<spec::SpreadRange> cut;
  for (const std::int64_t first : {std::int64_t{0}, spec::kSumTile}) {
    const std::int64_t count = first == 0 ? spec::kSumTile : offset - spec::kSumTile;
    for (const spec::SpreadRange& range : step::norm_ranges(unit, first, count))
      cut.push_back(range);
  }
  const std::vector<spec::SpreadRange> whole = step::norm_ranges(unit, 0, offset);
  ASSERT_EQ(whole.size(), 5U);
  ASSERT_EQ(cut.size(), whole.size());
  std::int64_t at = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].first, at);
    EXPECT_EQ(cut[i].first, at);
    EXPECT_EQ(cut[i].count, whole[i].count);
    EXPECT_EQ(whole[i].spread.parts, i == 0 || i == 4 ? 1 : 2);
    EXPECT_LE(whole[i].count, spec::kSumTile);
    at += whole[i].count;
  }
  EXPECT_EQ(at, offset);
}

}  // namespace
}  // namespace neap::train
