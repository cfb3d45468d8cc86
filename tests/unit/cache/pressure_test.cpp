// What happens when the device has no more: retries, fraction, garbage collection, shortage.
#include <gtest/gtest.h>

#include "cache/caching_allocator.h"
#include "cache/sim_source.h"
#include "unit/cache/options_with.h"

namespace neap::cache {
namespace {

TEST(Pressure, AMissReleasesTheCacheAndTriesAgain) {
  SimSource source(100_MiB);
  CachingAllocator cache(source, options_with(""));
  const Address a = *cache.malloc(60_MiB);
  ASSERT_TRUE(cache.free(a).ok());
  ASSERT_TRUE(cache.malloc(80_MiB).ok());
  EXPECT_EQ(cache.stats().retries, 1u);
  EXPECT_EQ(cache.stats().device_frees, 1u);
  EXPECT_EQ(cache.stats().ooms, 0u);
}

TEST(Pressure, AShortageSaysNeedFreeAndHolders) {
  SimSource source(100_MiB);
  CachingAllocator cache(source, options_with(""));
  const Address a = *cache.malloc(30_MiB);
  static_cast<void>(cache.malloc(5_MiB));
  const auto refused = cache.malloc(64_MiB);
  ASSERT_FALSE(refused.ok());
  const MemoryShortage* shortage = refused.status().shortage();
  ASSERT_NE(shortage, nullptr);
  EXPECT_EQ(shortage->need, 64_MiB);
  EXPECT_EQ(shortage->free, 50_MiB);
  ASSERT_EQ(shortage->holders.size(), 2u);
  EXPECT_EQ(shortage->holders[0].bytes, 35_MiB);
  EXPECT_EQ(cache.stats().ooms, 1u);
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_TRUE(cache.malloc(64_MiB).ok()) << "a shortage leaves the allocator usable";
  EXPECT_TRUE(cache.check_invariants().ok());
}

TEST(Pressure, AFractionRefusesBeforeTheDeviceDoes) {
  SimSource source(100_MiB);
  CachingAllocator cache(source, options_with("per_process_memory_fraction:0.5"));
  ASSERT_TRUE(cache.malloc(40_MiB).ok());
  EXPECT_FALSE(cache.malloc(12_MiB).ok());
  EXPECT_TRUE(cache.malloc(10_MiB).ok());
}

TEST(Pressure, MaxSplitReleasesOneLargeEnoughBlock) {
  SimSource source(250_MiB);
  CachingAllocator cache(source, options_with("max_split_size_mb:50"));
  const Address a = *cache.malloc(120_MiB);
  const Address b = *cache.malloc(100_MiB);
  ASSERT_TRUE(cache.free(a).ok());
  ASSERT_TRUE(cache.free(b).ok());
  // Neither fits within the rounding of 20 MiB; the smaller one is large enough and goes.
  ASSERT_TRUE(cache.malloc(70_MiB).ok());
  EXPECT_EQ(cache.stats().reserved, 190_MiB);
  EXPECT_EQ(cache.stats().device_frees, 1u);
  EXPECT_EQ(cache.stats().retries, 0u);
}

TEST(Pressure, MaxSplitReleasesLargestFirstUntilEnough) {
  SimSource source(200_MiB);
  CachingAllocator cache(source, options_with("max_split_size_mb:40"));
  const Address a = *cache.malloc(60_MiB);
  const Address b = *cache.malloc(60_MiB);
  const Address c = *cache.malloc(60_MiB);
  for (const Address at : {a, b, c}) ASSERT_TRUE(cache.free(at).ok());
  ASSERT_TRUE(cache.malloc(120_MiB).ok());
  EXPECT_EQ(cache.stats().device_frees, 2u);
  EXPECT_EQ(cache.stats().retries, 0u) << "the cache as a whole was not released";
  EXPECT_EQ(cache.stats().reserved, 180_MiB);
}

TEST(Pressure, OversizeBlocksServeOnlyOversizeRequests) {
  SimSource source(1_GiB);
  CachingAllocator cache(source, options_with("max_split_size_mb:50"));
  const Address a = *cache.malloc(64_MiB);
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_NE(*cache.malloc(20_MiB), a);
  EXPECT_EQ(*cache.malloc(51_MiB), a) << "within the rounding of 20 MiB";
  EXPECT_EQ(cache.block_size(a), 64_MiB) << "oversize blocks are not split";
}

TEST(Pressure, GarbageCollectionFreesWhatWaitedLongest) {
  SimSource source(1000_MiB);
  CachingAllocator cache(
      source, options_with("garbage_collection_threshold:0.25,per_process_memory_fraction:1"));
  const Address old_one = *cache.malloc(100_MiB);
  ASSERT_TRUE(cache.free(old_one).ok());
  for (Stream stream = 1; stream <= 8; ++stream)
    static_cast<void>(cache.malloc(10_MiB + 512_B, stream));
  const Address young = *cache.malloc(150_MiB);
  ASSERT_TRUE(cache.free(young).ok());
  EXPECT_EQ(cache.stats().device_frees, 0u) << "196 MiB were below the threshold";
  static_cast<void>(cache.malloc(160_MiB));
  EXPECT_EQ(cache.stats().device_frees, 1u) << "the old segment brought it below the threshold";
  EXPECT_EQ(cache.stats().reserved, 406_MiB);
  EXPECT_EQ(*cache.malloc(150_MiB), young);
  EXPECT_EQ(cache.stats().retries, 0u);
  EXPECT_TRUE(cache.check_invariants().ok());
}

TEST(Pressure, GarbageCollectionNeedsAFraction) {
  SimSource source(1000_MiB);
  CachingAllocator cache(source, options_with("garbage_collection_threshold:0.1"));
  for (const Bytes size : {100_MiB, 200_MiB, 300_MiB}) {
    const Address at = *cache.malloc(size);
    ASSERT_TRUE(cache.free(at).ok());
  }
  EXPECT_EQ(cache.stats().device_frees, 0u);
}

TEST(Pressure, FallbackPoolsServeARequestThatWouldFail) {
  SimSource source(100_MiB);
  CachingAllocator cache(source, options_with(""));
  ASSERT_TRUE(cache.set_pool_options(4, {.use_on_oom = true}).ok());
  const Address pooled = *cache.malloc(70_MiB, 0, 4);
  ASSERT_TRUE(cache.free(pooled).ok());
  EXPECT_EQ(*cache.malloc(50_MiB), pooled);
}

TEST(Pressure, APrivatePoolCannotReclaimBefore213) {
  for (const bool newer : {false, true}) {
    SimSource source(100_MiB);
    CachingAllocator cache(source,
                           options_with("", PolicyVersion::for_version(newer ? "2.13" : "2.11")));
    const Address a = *cache.malloc(70_MiB);
    ASSERT_TRUE(cache.free(a).ok());
    EXPECT_EQ(cache.malloc(60_MiB, 0, 1).ok(), newer);
  }
}

/// Fails the k-th call with a code of its own.
class FaultySource : public SimSource {
 public:
  FaultySource(int good_calls, ErrorCode code) : SimSource(1_GiB), left_(good_calls), code_(code) {}
  Result<Address> allocate(Bytes size, Stream stream, bool small) override {
    if (left_-- <= 0) return Status(code_, "the driver says no");
    return SimSource::allocate(size, stream, small);
  }
  Status map(Address at, Bytes size) override {
    if (left_-- <= 0) return Status(code_, "the driver says no");
    return SimSource::map(at, size);
  }
  Status free(Address at, Bytes size) override {
    if (left_-- <= 0 && code_ == ErrorCode::kDeviceLost) return Status(code_, "gone");
    return SimSource::free(at, size);
  }

 private:
  int left_;
  ErrorCode code_;
};

TEST(Pressure, AFailingSourceLeavesTheStateSound) {
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:20"}) {
    for (const ErrorCode code : {ErrorCode::kDeviceLost, ErrorCode::kOutOfDeviceMemory}) {
      for (int good = 0; good < 12; ++good) {
        FaultySource source(good, code);
        CachingAllocator cache(source, options_with(conf));
        std::vector<Address> held;
        for (const Bytes size : {1_KiB, 3_MiB, 30_MiB, 61_MiB, 2_KiB, 130_MiB, 45_MiB}) {
          const auto address = cache.malloc(size);
          if (address.ok()) {
            held.push_back(*address);
          } else {
            EXPECT_EQ(address.status().code(), code);
          }
          if (held.size() == 3) {
            ASSERT_TRUE(cache.free(held.front()).ok());
            held.erase(held.begin());
          }
          const Status sound = cache.check_invariants();
          ASSERT_TRUE(sound.ok()) << sound.message();
        }
        static_cast<void>(cache.empty_cache());
        EXPECT_TRUE(cache.check_invariants().ok());
      }
    }
  }
}

}  // namespace
}  // namespace neap::cache
