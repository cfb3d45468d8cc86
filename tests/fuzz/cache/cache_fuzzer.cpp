// Any stream of operations leaves the allocator sound: the first bytes choose settings, each further
// three an operation.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cache/caching_allocator.h"
#include "cache/sim_source.h"

namespace {

using namespace neap;
using namespace neap::cache;

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::abort();
}

const char* const kConfs[] = {
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64,expandable_segments:True",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "large_segment_size_mb:64,expandable_segments:True",
    "max_split_size_mb:40,max_non_split_rounding_mb:8,garbage_collection_threshold:0.7,"
    "per_process_memory_fraction:0.8",
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  // The rest of the input is a settings text as well: it parses or is refused, and what parses
  // survives being written and read again.
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  if (const auto parsed = Settings::parse(text); parsed.ok()) {
    const auto again = Settings::parse(parsed->to_string());
    if (!again.ok() || !(*again == *parsed)) std::abort();
  }
  CacheOptions options;
  options.settings = *Settings::parse(kConfs[data[0] % std::size(kConfs)]);
  options.version = PolicyVersion::for_version(data[1] % 2 == 0 ? "2.11" : "2.13");
  options.locking = LockPolicy::kNone;
  SimSource source(Bytes((64ull << 20) << (data[1] / 2 % 6)));
  CachingAllocator cache(source, options);
  std::vector<Address> live;
  std::vector<Address> pending;
  std::uint64_t synchronizations = 0;
  for (std::size_t i = 2; i + 2 < size; i += 3) {
    const unsigned argument = data[i + 1] | data[i + 2] << 8;
    switch (data[i] % 16) {
      default: {
        const std::uint64_t bytes =
            (1ull << (argument % 40)) + argument * (data[i] % 3 == 0 ? 4099ull : 1);
        const auto at = cache.malloc(Bytes(bytes), data[i] / 16 % 3, data[i] / 64);
        if (at.ok())
          live.push_back(*at);
        else if (at.status().code() != ErrorCode::kOutOfDeviceMemory)
          require(at.status());
        break;
      }
      case 8:
      case 9:
      case 10:
      case 11:
      case 12: {
        if (live.empty()) break;
        const std::size_t which = argument % live.size();
        if (data[i] % 16 == 12) {
          require(cache.request_free(live[which]));
          pending.push_back(live[which]);
        } else {
          require(cache.free(live[which]));
        }
        live[which] = live.back();
        live.pop_back();
        break;
      }
      case 13:
        if (!pending.empty()) {
          require(cache.complete_free(pending.back()));
          pending.pop_back();
        }
        break;
      case 14:
        require(cache.empty_cache());
        break;
      case 15:
        static_cast<void>(cache.release_pool(1 + argument % 3));
        static_cast<void>(cache.release_range(argument * 512ull, Bytes(argument)));
        static_cast<void>(cache.free(argument));
        break;
    }
    const CacheStats stats = cache.stats();
    if (stats.synchronizations != synchronizations) pending.clear();
    synchronizations = stats.synchronizations;
    if (source.used() != stats.reserved) std::abort();
    if (i % 24 == 2) require(cache.check_invariants());
  }
  require(cache.check_invariants());
  // What it shows can be taken over by another.
  if (!options.settings.expandable_segments) {
    SimSource other_source(source.capacity());
    CachingAllocator other(other_source, options);
    require(other.adopt(cache.snapshot(), {}));
    require(other.check_invariants());
  }
  return 0;
}
