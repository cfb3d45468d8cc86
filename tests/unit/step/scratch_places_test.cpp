#include "step/counting/scratch_places.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace neap::step {
namespace {

TEST(ScratchPlaces, TakesTheLowestPlaceThatFits) {
  ScratchPlaces places;
  EXPECT_EQ(places.take(1), 0u);
  EXPECT_EQ(places.take(513), 512u);
  EXPECT_EQ(places.take(512), 1536u);
  EXPECT_TRUE(places.give_back(512));
  EXPECT_FALSE(places.give_back(512)) << "freed already";
  EXPECT_EQ(places.take(1025), 2048u) << "three units do not fit the two that are free";
  EXPECT_EQ(places.take(512), 512u);
  EXPECT_EQ(places.take(512), 1024u);
  EXPECT_EQ(places.extent(), 3584u);
  EXPECT_EQ(places.live(), 5u);
  places.clear();
  EXPECT_EQ(places.live(), 0u);
  EXPECT_EQ(places.take(1), 0u);
  EXPECT_EQ(places.extent(), 3584u) << "what was needed before stays known";
}

TEST(ScratchPlaces, NeverOverlap) {
  std::mt19937_64 random(7);
  ScratchPlaces places;
  std::map<std::uint64_t, std::uint64_t> live;  // offset -> bytes
  for (int i = 0; i < 20000; ++i) {
    if (!live.empty() && random() % 2 == 0) {
      const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      ASSERT_TRUE(places.give_back(victim->first));
      live.erase(victim);
      continue;
    }
    const std::uint64_t bytes = 1 + random() % 5000, at = places.take(bytes);
    ASSERT_EQ(at % ScratchPlaces::kAlignment, 0u);
    ASSERT_LE(at + bytes, places.extent());
    const auto after = live.lower_bound(at);
    if (after != live.end()) {
      ASSERT_LE(at + bytes, after->first);
    }
    if (after != live.begin()) {
      ASSERT_LE(std::prev(after)->first + std::prev(after)->second, at);
    }
    live.emplace(at, bytes);
  }
}

// The same requests give the same places, so a graph's tensors are where they were.
TEST(ScratchPlaces, ASinkAndARunAgree) {
  ScratchSink counted;
  ScratchPlaces run;
  const std::vector<std::int64_t> sizes{4096, 1, 700, 65536, 3};
  std::vector<std::uint64_t> at;
  for (int round = 0; round < 2; ++round) {
    for (const std::int64_t bytes : sizes) {
      at.push_back(run.take(static_cast<std::uint64_t>(bytes)));
      EXPECT_EQ(counted.allocate(bytes), at.back());
    }
    for (const std::uint64_t place : at) {
      EXPECT_TRUE(run.give_back(place));
      counted.release(place);
    }
    at.clear();
  }
  EXPECT_EQ(counted.extent(), run.extent());
}

}  // namespace
}  // namespace neap::step
