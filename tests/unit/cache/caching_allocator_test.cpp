#include "cache/caching_allocator.h"

#include <gtest/gtest.h>

#include <thread>

#include "cache/sim_source.h"

namespace neap::cache {
namespace {

class Recorder : public trace::EventSink {
 public:
  void record(const trace::Event& event) override { events.push_back(event); }
  std::uint32_t intern(std::string_view) override { return 0; }
  std::vector<trace::Event> events;
};

class CachingAllocatorTest : public ::testing::Test {
 protected:
  CachingAllocator& make(std::string_view conf = "", Bytes capacity = 80_GiB) {
    allocator_.reset();
    source_ = std::make_unique<SimSource>(capacity);
    CacheOptions options;
    options.settings = *Settings::parse(conf);
    options.events = &recorder_;
    allocator_ = std::make_unique<CachingAllocator>(*source_, options);
    return *allocator_;
  }
  Address get(Bytes size, Stream stream = 0, std::uint32_t pool = 0) {
    auto address = allocator_->malloc(size, stream, pool);
    EXPECT_TRUE(address.ok()) << address.status().message();
    return address.ok() ? *address : 0;
  }
  void TearDown() override {
    if (allocator_ == nullptr) return;
    const Status invariants = allocator_->check_invariants();
    EXPECT_TRUE(invariants.ok()) << invariants.message();
    allocator_.reset();
    EXPECT_EQ(source_->used(), 0_B) << "the destructor gives every segment back";
  }
  Recorder recorder_;
  std::unique_ptr<SimSource> source_;
  std::unique_ptr<CachingAllocator> allocator_;
};

TEST_F(CachingAllocatorTest, SmallRequestsShareASegment) {
  auto& cache = make();
  const Address a = get(1_B);
  const Address b = get(700_B);
  const Address c = get(512_B);
  EXPECT_EQ(b, a + 512);
  EXPECT_EQ(c, b + 1024);
  EXPECT_EQ(cache.stats().reserved, 2_MiB);
  EXPECT_EQ(cache.stats().allocated, 2048_B);
  EXPECT_EQ(cache.stats().requested, 1213_B);
  EXPECT_EQ(cache.block_size(b), 1024_B);
}

TEST_F(CachingAllocatorTest, ReusesTheBestFitAndTheLowestAddress) {
  auto& cache = make();
  const Address a = get(4_KiB);
  const Address keep1 = get(512_B);
  const Address b = get(2_KiB);
  const Address keep2 = get(512_B);
  const Address c = get(2_KiB);
  const Address keep3 = get(512_B);
  for (const Address at : {a, c, b}) ASSERT_TRUE(cache.free(at).ok());
  EXPECT_EQ(get(2_KiB), b);
  EXPECT_EQ(get(2_KiB), c);
  EXPECT_EQ(get(2_KiB), a);
  for (const Address at : {keep1, keep2, keep3}) EXPECT_NE(cache.block_size(at), 0_B);
}

TEST_F(CachingAllocatorTest, LargeBlocksSplitOnlyAboveOneMebibyte) {
  auto& cache = make();
  const Address a = get(19_MiB);
  EXPECT_EQ(cache.block_size(a), 20_MiB) << "a rest of 1 MiB stays inside";
  ASSERT_TRUE(cache.free(a).ok());
  const Address b = get(18_MiB);
  EXPECT_EQ(b, a);
  EXPECT_EQ(cache.block_size(b), 18_MiB);
}

TEST_F(CachingAllocatorTest, StreamsAndPoolsDoNotShare) {
  auto& cache = make();
  const Address a = get(1_KiB, 1);
  ASSERT_TRUE(cache.free(a).ok());
  const Address other_stream = get(1_KiB, 2);
  const Address other_pool = get(1_KiB, 1, 3);
  EXPECT_EQ(cache.stats().reserved, 6_MiB);
  EXPECT_EQ(get(1_KiB, 1), a);
  ASSERT_TRUE(cache.free(other_stream).ok());
  ASSERT_TRUE(cache.free(other_pool).ok());
  ASSERT_TRUE(cache.empty_cache().ok());
  EXPECT_EQ(cache.stats().reserved, 4_MiB) << "a private pool in use keeps its segments";
  ASSERT_TRUE(cache.release_pool(3).ok());
  ASSERT_TRUE(cache.empty_cache().ok());
  EXPECT_EQ(cache.stats().reserved, 2_MiB);
  EXPECT_FALSE(cache.release_pool(3).ok()) << "the pool is gone with its last segment";
}

TEST_F(CachingAllocatorTest, AFreeWaitsForOtherStreams) {
  auto& cache = make();
  const Address a = get(2_KiB, 1);
  ASSERT_TRUE(cache.request_free(a).ok());
  EXPECT_EQ(cache.stats().allocated, 0_B);
  EXPECT_EQ(cache.stats().active, 2_KiB);
  EXPECT_NE(get(2_KiB, 1), a);
  EXPECT_FALSE(cache.free(a).ok()) << "a second free is refused";
  ASSERT_TRUE(cache.complete_free(a).ok());
  EXPECT_FALSE(cache.complete_free(a).ok());
  EXPECT_EQ(get(2_KiB, 1), a);
}

TEST_F(CachingAllocatorTest, EmptyCacheCompletesPendingFreesAndKeepsSplitSegments) {
  auto& cache = make();
  const Address a = get(30_MiB);
  const Address b = get(2_MiB);
  const Address c = get(3_MiB);
  ASSERT_TRUE(cache.request_free(a).ok());
  ASSERT_TRUE(cache.free(b).ok());
  ASSERT_TRUE(cache.empty_cache().ok());
  EXPECT_EQ(cache.stats().reserved, 20_MiB) << "the block at " << c << " pins its segment";
  EXPECT_EQ(cache.stats().synchronizations, 1u);
  EXPECT_EQ(cache.stats().device_frees, 1u);
}

TEST_F(CachingAllocatorTest, EventsComeInPyTorchsOrder) {
  make();
  const Address a = get(100_B, 5);
  ASSERT_TRUE(allocator_->free(a).ok());
  ASSERT_TRUE(allocator_->empty_cache().ok());
  using trace::EventKind;
  std::vector<EventKind> kinds;
  for (const auto& event : recorder_.events) {
    kinds.push_back(event.kind);
    EXPECT_EQ(event.stream, 5u);
    EXPECT_EQ(event.address, a);
  }
  EXPECT_EQ(kinds,
            (std::vector{EventKind::kSegmentAlloc, EventKind::kAlloc, EventKind::kFreeRequested,
                         EventKind::kFreeCompleted, EventKind::kSegmentFree}));
  EXPECT_EQ(recorder_.events[1].size, 100u) << "requested, not rounded";
  EXPECT_EQ(recorder_.events[0].size, (2_MiB).count());
}

TEST_F(CachingAllocatorTest, ZeroBytesAndUnknownAddresses) {
  auto& cache = make();
  EXPECT_EQ(get(0_B), 0u);
  EXPECT_TRUE(cache.free(0).ok());
  EXPECT_FALSE(cache.free(0x1234).ok());
  EXPECT_EQ(cache.malloc(Bytes(~0ull)).status().code(), ErrorCode::kOutOfDeviceMemory);
}

TEST_F(CachingAllocatorTest, SnapshotCanBeTakenOver) {
  auto& cache = make();
  const Address a = get(5_MiB);
  const Address b = get(6_MiB);
  const Address c = get(1_KiB, 7);
  ASSERT_TRUE(cache.free(a).ok());
  const auto segments = cache.snapshot();
  ASSERT_EQ(segments.size(), 2u);

  SimSource other_source(80_GiB);
  for (const auto& segment : segments) other_source.occupy(segment.address, segment.size, false);
  CachingAllocator other(other_source, {});
  ASSERT_TRUE(other.adopt(segments, {}).ok());
  ASSERT_TRUE(other.check_invariants().ok());
  EXPECT_EQ(other.stats().allocated, cache.stats().allocated);
  EXPECT_EQ(other.stats().reserved, cache.stats().reserved);
  EXPECT_EQ(*other.malloc(5_MiB), a);
  EXPECT_TRUE(other.free(b).ok());
  EXPECT_TRUE(other.free(c).ok());
  EXPECT_FALSE(other.adopt(segments, {}).ok()) << "only once";
}

TEST_F(CachingAllocatorTest, ReleaseRangeFreesExactlyWhatIsFree) {
  auto& cache = make();
  const Address a = get(30_MiB);
  EXPECT_FALSE(cache.release_range(a, 30_MiB).ok());
  ASSERT_TRUE(cache.free(a).ok());
  EXPECT_FALSE(cache.release_range(a, 20_MiB).ok());
  EXPECT_TRUE(cache.release_range(a, 30_MiB).ok());
  EXPECT_EQ(cache.stats().reserved, 0_B);
}

TEST_F(CachingAllocatorTest, ABlocksSizeIsZeroUnlessItIsAllocated) {
  auto& cache = make("", 1_GiB);
  const Address at = *cache.malloc(3_MiB);
  EXPECT_EQ(cache.block_size(at), 3_MiB);
  EXPECT_EQ(cache.block_size(at + 512), 0_B);
  EXPECT_EQ(cache.block_size(0), 0_B);
  ASSERT_TRUE(cache.free(at).ok());
  EXPECT_EQ(cache.block_size(at), 0_B);
}

TEST_F(CachingAllocatorTest, ThreadsShareOneAllocator) {
  auto& cache = make("", 8_GiB);
  recorder_.events.reserve(1 << 17);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      std::vector<Address> held;
      for (std::uint64_t i = 0; i < 4000; ++i) {
        auto address = cache.malloc(Bytes(1 + (i * 7919 + t * 104729) % 3'000'000));
        ASSERT_TRUE(address.ok());
        held.push_back(*address);
        if (held.size() > 20) {
          ASSERT_TRUE(cache.free(held[i % 20]).ok());
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(i % 20));
        }
      }
      for (const Address at : held) ASSERT_TRUE(cache.free(at).ok());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cache.stats().allocated, 0_B);
  ASSERT_TRUE(cache.empty_cache().ok());
  EXPECT_EQ(cache.stats().reserved, 0_B);
}

}  // namespace
}  // namespace neap::cache
