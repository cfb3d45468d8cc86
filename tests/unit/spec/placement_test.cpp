#include "spec/job/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "spec/job/job.h"

namespace neap::spec {
namespace {

OptimizerSpec optimizer_of(const std::string& kind, Dtype dtype) {
  OptimizerConfig config;
  config.kind = kind;
  config.momentum = 0.9;
  config.state_dtype = config.gradient_dtype = dtype;
  return OptimizerSpec::of(config, Dtype::kBfloat16).value();
}

std::vector<FlatUnit> random_units(std::mt19937& random) {
  const auto number = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  std::vector<FlatUnit> units(static_cast<std::size_t>(number(1, 7)));
  for (std::size_t u = 0; u < units.size(); ++u) {
    FlatUnit& unit = units[u];
    unit.name = "block." + std::to_string(u);
    for (std::int64_t p = number(1, 4); p > 0; --p) {
      Parameter parameter;
      parameter.name = unit.name + ".p" + std::to_string(p);
      parameter.shape = {number(1, 60)};
      if (number(0, 1) == 1) parameter.shape.push_back(number(1, 60));
      parameter.offset = unit.elements;
      unit.elements += (parameter.elements() + kParameterAlignment - 1) / kParameterAlignment *
                       kParameterAlignment;
      unit.parameters.push_back(std::move(parameter));
    }
  }
  return units;
}

// Of every tensor: owners cover it in order, and each one's piece has these elements of its unit.
void expect_all_once(const StatePlacement& placement, std::int64_t ranks) {
  for (const WholeState& state : placement.states()) {
    std::int64_t next = 0;
    for (const OwnedRange& owner : placement.owners(state)) {
      ASSERT_EQ(owner.first, next) << state.name;
      ASSERT_GT(owner.count, 0);
      ASSERT_LT(owner.rank, ranks);
      next = owner.first + owner.count;
      const std::vector<Piece> pieces = placement.pieces(owner.rank);
      const auto piece = std::find_if(pieces.begin(), pieces.end(),
                                      [&](const Piece& p) { return p.unit == state.unit; });
      ASSERT_NE(piece, pieces.end());
      EXPECT_EQ(placement.state(*piece).tensors()[state.tensor].elements, owner.count);
      if (state.flat()) {
        EXPECT_EQ(piece->first, owner.first);
      }
    }
    ASSERT_EQ(next, state.elements) << state.name;
  }
}

// Pieces of a rank lie in its parts without overlap, and the elements of all of them are the units'.
void expect_pieces_fit(const StatePlacement& placement, std::int64_t ranks, std::int64_t tile) {
  std::vector<std::int64_t> elements(placement.units().size());
  const std::vector<StatePart> parts = placement.parts();
  Bytes most;
  std::int64_t most_elements = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<Bytes> used(parts.size());
    std::int64_t mine = 0;
    for (const Piece& piece : placement.pieces(rank)) {
      EXPECT_EQ(piece.offset, used[piece.part]);
      EXPECT_EQ(piece.first % tile, 0);
      if (placement.sliced()) {
        EXPECT_EQ(piece.slice_first, mine);
      }
      mine += piece.count;
      used[piece.part] += placement.state(piece).bytes();
      elements[piece.unit] += piece.count;
    }
    for (std::size_t p = 0; p < parts.size(); ++p) EXPECT_LE(used[p], parts[p].bytes);
    most = std::max(most, used.front());
    most_elements = std::max(most_elements, mine);
    if (rank == placement.fullest_rank()) {
      EXPECT_EQ(parts.front().bytes, std::max(used.front(), kStateAlignment));
    }
  }
  if (placement.sliced()) {
    EXPECT_EQ(parts.front().bytes, std::max(most, kStateAlignment));
    EXPECT_EQ(placement.slice_elements(), most_elements);
  }
  for (std::size_t u = 0; u < elements.size(); ++u)
    EXPECT_EQ(elements[u], placement.units()[u].elements * (placement.sliced() ? 1 : ranks));
}

TEST(StatePlacement, EveryStateIsKeptOnce) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::vector<std::string> kinds = optimizer_names();
    const std::string& kind = kinds[static_cast<std::size_t>(i) % kinds.size()];
    const Dtype dtype = i % 3 == 0 ? Dtype::kBfloat16 : Dtype::kFloat32;
    const std::int64_t ranks = 1 + i % 9;
    const std::int64_t tile = kParameterAlignment << i % 5;
    const StatePlacement placement(optimizer_of(kind, dtype), random_units(random), {ranks, i % 4},
                                   tile);
    SCOPED_TRACE(kind + " on " + std::to_string(ranks) + " ranks, " +
                 (placement.sliced() ? "sliced" : "whole"));
    expect_all_once(placement, ranks);
    expect_pieces_fit(placement, ranks, tile);
  }
}

// (4 + K) N to 4 N + K N / d: a rank has at most a tile more than its share.
TEST(StatePlacement, ASliceIsAShareOfTheBytes) {
  FlatUnit unit;
  unit.name = "block.0";
  unit.parameters = {{.name = "w", .shape = {4096, 11'000}, .offset = 0, .spread = {}}};
  unit.elements = std::int64_t{4096} * 11'000;
  const OptimizerSpec adam = optimizer_of("adamw", Dtype::kFloat32);  // with a master
  for (const std::int64_t ranks : {2, 3, 7, 8, 64}) {
    const std::vector<FlatUnit> units(24, unit);
    const StatePlacement placement(adam, units, {ranks, 2});
    const double all = 24.0 * static_cast<double>(unit.elements);
    const double share = all / static_cast<double>(ranks);
    const auto slice = static_cast<double>(placement.parts().front().bytes.count()) / 12;
    EXPECT_GE(slice, share);
    EXPECT_LE(slice, share + static_cast<double>(kSumTile)) << ranks;
    EXPECT_EQ(static_cast<double>(placement.slice_elements()), slice);
    // Of each unit about as many, so that a gather of it keeps all ranks busy.
    for (const std::int64_t count : placement.counts(0)) {
      EXPECT_GE(count, (unit.elements / kSumTile / ranks - 1) * kSumTile) << ranks;
      EXPECT_LE(count, (unit.elements / kSumTile / ranks + 2) * kSumTile) << ranks;
    }
  }
}

// What cannot be cut is dealt: 24 equal blocks on 8 ranks are 3 each.
TEST(StatePlacement, WholeUnitsAreDealtEvenly) {
  FlatUnit unit;
  unit.name = "block";
  unit.parameters = {{.name = "w", .shape = {64, 64}, .offset = 0, .spread = {}}};
  unit.elements = 4096;
  const StatePlacement placement(optimizer_of("adafactor", Dtype::kFloat32),
                                 std::vector<FlatUnit>(24, unit), {8, 1});
  for (std::int64_t rank = 0; rank < 8; ++rank) EXPECT_EQ(placement.pieces(rank).size(), 3U);
}

TEST(StatePlacement, MoreRanksThanTiles) {
  FlatUnit unit;
  unit.name = "head";
  unit.parameters = {{.name = "w", .shape = {100}, .offset = 0, .spread = {}}};
  unit.elements = 128;
  const StatePlacement placement(optimizer_of("adamw", Dtype::kFloat32), {unit, unit}, {16, 1});
  for (const std::int64_t rank : {0, 1}) {
    ASSERT_EQ(placement.pieces(rank).size(), 1U);
    EXPECT_EQ(placement.pieces(rank).front().count, 128);
  }
  EXPECT_TRUE(placement.pieces(15).empty());
  EXPECT_EQ(placement.slice_elements(), 128);
}

}  // namespace
}  // namespace neap::spec
