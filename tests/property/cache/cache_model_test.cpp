// Random operations through the allocator and the slow model: every address, counter and retry must
// agree. Both have a simulated device of their own, which answers equal questions equally.
#include <gtest/gtest.h>

#include <random>

#include "base/format.h"
#include "slow_model.h"

namespace neap::cache {
namespace {

struct Case {
  const char* conf;
  Bytes capacity;
};

class CacheModel : public ::testing::TestWithParam<Case> {};

std::uint64_t random_size(std::mt19937_64& random) {
  // Magnitudes from bytes to 100 MiB, with borders of the policy among them.
  constexpr std::uint64_t kBorders[] = {1,       511,     512,      513,      1 << 20,
                                        1048577, 2 << 20, 10 << 20, 20 << 20, 64 << 20};
  if (random() % 8 == 0) return kBorders[random() % std::size(kBorders)];
  const std::uint64_t top = 1ull << (4 + random() % 23);
  return top + random() % top;
}

TEST_P(CacheModel, Agrees) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed * 7919);
    CacheOptions options;
    options.settings = *Settings::parse(GetParam().conf);
    options.locking = LockPolicy::kNone;
    options.version = PolicyVersion::for_version(seed % 3 == 0 ? "2.13" : "2.11");
    SimSource source(GetParam().capacity);
    SimSource model_source(GetParam().capacity);
    CachingAllocator cache(source, options);
    SlowModel model(model_source, options.settings, options.version);
    std::vector<Address> live;
    std::vector<Address> pending;
    std::uint64_t synchronizations = 0;
    for (int step = 0; step < 500; ++step) {
      SCOPED_TRACE(format("{}, seed {}, step {}", GetParam().conf, seed, step));
      const auto choice = random() % 100;
      if (choice < 52 || live.empty()) {
        const std::uint64_t size = random_size(random);
        const Stream stream = random() % 10 == 0 ? 7 : 0;
        const std::uint32_t pool = random() % 12 == 0 ? 3 : 0;
        const auto got = cache.malloc(Bytes(size), stream, pool);
        const auto wanted = model.malloc(size, stream, pool);
        ASSERT_EQ(got.ok(), wanted.has_value());
        if (got.ok()) {
          ASSERT_EQ(*got, *wanted);
          live.push_back(*got);
        }
      } else if (choice < 94) {
        const std::size_t at = random() % live.size();
        const bool defer = random() % 9 == 0;
        ASSERT_TRUE((defer ? cache.request_free(live[at]) : cache.free(live[at])).ok());
        model.free(live[at], defer);
        if (defer) pending.push_back(live[at]);
        live[at] = live.back();
        live.pop_back();
      } else if (choice < 97) {
        if (!pending.empty()) {
          ASSERT_TRUE(cache.complete_free(pending.front()).ok());
          model.complete(pending.front());
          pending.erase(pending.begin());
        }
      } else if (choice < 99) {
        ASSERT_TRUE(cache.empty_cache().ok());
        model.empty_cache();
      } else if (cache.release_pool(3).ok()) {
        model.release_pool(3);
      }
      const CacheStats stats = cache.stats();
      if (stats.synchronizations != synchronizations) pending.clear();
      synchronizations = stats.synchronizations;
      ASSERT_EQ(stats.reserved.count(), model.reserved);
      ASSERT_EQ(stats.allocated.count(), model.allocated);
      ASSERT_EQ(stats.device_allocs, model.device_allocs);
      ASSERT_EQ(stats.device_frees, model.device_frees);
      ASSERT_EQ(stats.retries, model.retries);
      if (step % 50 == 0) {
        const Status sound = cache.check_invariants();
        ASSERT_TRUE(sound.ok()) << sound.message();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , CacheModel,
    ::testing::Values(Case{"", 8_GiB}, Case{"", 600_MiB}, Case{"expandable_segments:True", 8_GiB},
                      Case{"expandable_segments:True", 500_MiB},
                      Case{"max_split_size_mb:32", 8_GiB}, Case{"max_split_size_mb:32", 700_MiB},
                      Case{"max_split_size_mb:64,expandable_segments:True", 900_MiB},
                      Case{"max_split_size_mb:40,max_non_split_rounding_mb:8", 800_MiB},
                      Case{"roundup_power2_divisions:8", 2_GiB},
                      Case{"roundup_power2_divisions:[1:4,16:2,>:1],max_split_size_mb:64", 700_MiB},
                      Case{"garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
                           800_MiB},
                      Case{"garbage_collection_threshold:0.7,per_process_memory_fraction:0.8,"
                           "max_split_size_mb:48",
                           900_MiB},
                      Case{"large_segment_size_mb:64", 900_MiB},
                      Case{"large_segment_size_mb:64,expandable_segments:True", 900_MiB},
                      Case{"per_process_memory_fraction:0.5,expandable_segments:True", 900_MiB}));

}  // namespace
}  // namespace neap::cache
