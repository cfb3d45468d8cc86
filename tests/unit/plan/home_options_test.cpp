// Combinations of homes that a search tries.
#include "plan/search/home_options.h"

#include <gtest/gtest.h>

namespace neap::plan {
namespace {

HomeOption option(double seconds, Bytes needed, Bytes kept, Bytes host) {
  HomeOption out;
  out.seconds = seconds;
  out.needed = needed;
  out.kept = kept;
  out.host = host;
  return out;
}

// Each resident or streamed.
std::vector<ModelOptions> two_models() {
  return {
      {spec::ModelId::kActor, {option(10, 8_GiB, 6_GiB, Bytes()), option(12, 3_GiB, 1_GiB, 6_GiB)}},
      {spec::ModelId::kReference,
       {option(2, 4_GiB, 3_GiB, Bytes()), option(2.5, 1_GiB, Bytes(), 3_GiB)}}};
}

TEST(HomeOptions, WithoutLimitsTheFastestCombinationIsFirst) {
  const std::vector<HomeCombination> all = combinations(two_models(), {});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].options[0], 0u);
  EXPECT_EQ(all[0].options[1], 0u);
  EXPECT_EQ(all[0].seconds, 12);
  EXPECT_EQ(all[0].needed, 8_GiB);
  EXPECT_EQ(all[0].kept, 9_GiB);
  // Then the one that leaves the most room.
  EXPECT_EQ(all[1].needed, 3_GiB);
  EXPECT_EQ(all[1].options[1], 1u);
}

TEST(HomeOptions, CombinationsKeepWithinEachLimit) {
  const auto count = [](const HomeLimits& limits) {
    return combinations(two_models(), limits).size();
  };
  EXPECT_EQ(count({.capacity = 4_GiB, .bytes_per_second = 1e9}), 2u);
  EXPECT_EQ(count({.capacity = 2_GiB, .bytes_per_second = 1e9}), 0u);
  EXPECT_EQ(count({.host = 4_GiB}), 2u);
  EXPECT_EQ(count({.seconds = 12.6}), 2u);
}

TEST(HomeOptions, MovesOfWhatDoesNotFitCountInTheOrder) {
  // Resident models need no more than 8 GiB each, but 9 GiB together.
  const std::vector<HomeCombination> all =
      combinations(two_models(), {.capacity = 8_GiB, .bytes_per_second = 1e9});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].options[0], 0u);
  EXPECT_EQ(all[0].options[1], 1u);
}

}  // namespace
}  // namespace neap::plan
