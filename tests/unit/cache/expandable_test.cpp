#include <gtest/gtest.h>

#include "cache/caching_allocator.h"
#include "cache/sim_source.h"
#include "unit/cache/options_with.h"

namespace neap::cache {
namespace {

TEST(Expandable, GrowsOneRangePageByPage) {
  SimSource source(80_GiB);
  CachingAllocator cache(source, options_with("expandable_segments:True"));
  const Address a = *cache.malloc(15_MiB);
  EXPECT_EQ(cache.stats().reserved, 20_MiB);
  const Address b = *cache.malloc(10_MiB);
  EXPECT_EQ(b, a + (15_MiB).count()) << "grows from the free tail";
  EXPECT_EQ(cache.stats().reserved, 40_MiB);
  EXPECT_EQ(cache.stats().device_allocs, 2u);
  const Address small = *cache.malloc(1_KiB);
  EXPECT_EQ(cache.stats().reserved, 42_MiB) << "small pages are 2 MiB";
  EXPECT_EQ(cache.snapshot().size(), 2u);
  EXPECT_TRUE(cache.check_invariants().ok());
  EXPECT_TRUE(cache.free(small).ok());
}

TEST(Expandable, EmptyCacheUnmapsWholePagesOnly) {
  SimSource source(80_GiB);
  CachingAllocator cache(source, options_with("expandable_segments:True"));
  const Address a = *cache.malloc(30_MiB);
  const Address b = *cache.malloc(50_MiB);
  const Address c = *cache.malloc(5_MiB);
  ASSERT_EQ(cache.stats().reserved, 100_MiB);
  ASSERT_TRUE(cache.free(b).ok());
  ASSERT_TRUE(cache.empty_cache().ok());
  // b is [30, 80): pages [40, 80) go. The tail of c's page stays.
  EXPECT_EQ(cache.stats().reserved, 60_MiB);
  EXPECT_EQ(cache.stats().device_frees, 1u);
  ASSERT_TRUE(cache.check_invariants().ok());
  EXPECT_EQ(*cache.malloc(45_MiB), b) << "the hole is mapped again";
  EXPECT_EQ(cache.stats().reserved, 100_MiB);
  for (const Address at : {a, b, c}) ASSERT_TRUE(cache.free(at).ok());
  ASSERT_TRUE(cache.empty_cache().ok());
  EXPECT_EQ(cache.stats().reserved, 0_B);
  EXPECT_TRUE(cache.snapshot().empty());
  EXPECT_TRUE(cache.check_invariants().ok());
}

// The growth that pytorch issue 193400 reports: blocks merged above max_split_size serve nobody.
TEST(Expandable, MaxSplitSizeGrowsWithoutBoundAsReported) {
  const auto reserved_after = [](std::string_view conf) {
    SimSource source(80_GiB);
    CachingAllocator cache(source, options_with(conf));
    static_cast<void>(cache.malloc(64_MiB));
    std::vector<std::uint64_t> allocated_mib;
    std::vector<std::uint64_t> reserved_mib;
    for (int cycle = 0; cycle <= 100; ++cycle) {
      const Address a = *cache.malloc(91_MiB);
      const Address b = *cache.malloc(Bytes((91_MiB).count() / 2));
      static_cast<void>(cache.malloc(2_MiB));
      EXPECT_TRUE(cache.free(a).ok());
      EXPECT_TRUE(cache.free(b).ok());
      if (cycle % 20 == 0) {
        allocated_mib.push_back(cache.stats().allocated / 1_MiB);
        reserved_mib.push_back(cache.stats().reserved / 1_MiB);
      }
    }
    EXPECT_TRUE(cache.check_invariants().ok());
    EXPECT_EQ(allocated_mib, (std::vector<std::uint64_t>{66, 106, 146, 186, 226, 266}));
    return reserved_mib;
  };
  EXPECT_EQ(reserved_after("max_split_size_mb:128,expandable_segments:True"),
            (std::vector<std::uint64_t>{220, 2980, 5760, 8520, 11300, 14060}));
  EXPECT_EQ(reserved_after("expandable_segments:True"),
            (std::vector<std::uint64_t>{220, 260, 300, 340, 380, 420}));
}

TEST(Expandable, APoolWithItsOwnAllocatorIsNotExpandable) {
  SimSource source(80_GiB);
  CachingAllocator cache(source, options_with("expandable_segments:True"));
  ASSERT_TRUE(cache.set_pool_options(1, {.own_allocator = true}).ok());
  static_cast<void>(cache.malloc(3_MiB, 0, 1));
  static_cast<void>(cache.malloc(3_MiB, 0, 2));
  const auto segments = cache.snapshot();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_NE(segments[0].expandable, segments[1].expandable);
}

TEST(Expandable, AdoptsRangesWithHoles) {
  SimSource source(80_GiB);
  CachingAllocator cache(source, options_with("expandable_segments:True"));
  const Address a = *cache.malloc(30_MiB);
  const Address b = *cache.malloc(50_MiB);
  static_cast<void>(cache.malloc(5_MiB));
  ASSERT_TRUE(cache.free(b).ok());
  ASSERT_TRUE(cache.empty_cache().ok());
  const auto segments = cache.snapshot();
  ASSERT_EQ(segments.size(), 2u);
  SimSource other_source(80_GiB);
  other_source.occupy(a, 60_MiB, false);
  CachingAllocator other(other_source, options_with("expandable_segments:True"));
  ASSERT_TRUE(other.adopt(segments, {{a, 90_GiB}}).ok());
  ASSERT_TRUE(other.check_invariants().ok());
  EXPECT_EQ(*other.malloc(45_MiB), b);
  EXPECT_EQ(other.stats().reserved, 100_MiB);
  EXPECT_FALSE(CachingAllocator(other_source, options_with("expandable_segments:True"))
                   .adopt(segments, {})
                   .ok());
}

}  // namespace
}  // namespace neap::cache
