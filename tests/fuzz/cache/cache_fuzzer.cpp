// Any stream of operations leaves the allocator sound: the first bytes choose settings, each further
// three an operation.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
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
    ("max_split_size_mb:40,max_non_split_rounding_mb:8,garbage_collection_threshold:0.7,"
     "per_process_memory_fraction:0.8"),
};

/// A settings text parses or is refused, and what parses survives being written and read again.
void check_settings(std::string_view text) {
  const auto parsed = Settings::parse(text);
  if (!parsed.ok()) return;
  const auto again = Settings::parse(parsed->to_string());
  if (!again.ok() || !(*again == *parsed)) std::abort();
}

/// An allocator with its live addresses, as a program would use it.
class Program {
 public:
  Program(SimSource& source, const CacheOptions& options)
      : source_(source), cache_(source, options) {}
  [[nodiscard]] CachingAllocator& cache() { return cache_; }

  void act(std::uint8_t what, unsigned argument) {
    switch (what % 16) {
      case 8:
      case 9:
      case 10:
      case 11:
        if (const Address at = take_live(argument); at != 0) require(cache_.free(at));
        break;
      case 12:
        if (const Address at = take_live(argument); at != 0) {
          require(cache_.request_free(at));
          pending_.push_back(at);
        }
        break;
      case 13:
        if (!pending_.empty()) {
          require(cache_.complete_free(pending_.back()));
          pending_.pop_back();
        }
        break;
      case 14:
        require(cache_.empty_cache());
        break;
      case 15:
        static_cast<void>(cache_.release_pool(1 + argument % 3));
        static_cast<void>(cache_.release_range(argument * 512ull, Bytes(argument)));
        static_cast<void>(cache_.free(argument));
        break;
      default:
        allocate(what, argument);
    }
    const CacheStats stats = cache_.stats();
    if (stats.synchronizations != synchronizations_) pending_.clear();
    synchronizations_ = stats.synchronizations;
    if (source_.used() != stats.reserved) std::abort();
  }

 private:
  void allocate(std::uint8_t what, unsigned argument) {
    const std::uint64_t bytes =
        (1ull << (argument % 40)) + argument * (what % 3 == 0 ? 4099ull : 1);
    const auto at = cache_.malloc(Bytes(bytes), what / 16 % 3, what / 64);
    if (at.ok())
      live_.push_back(*at);
    else if (at.status().code() != ErrorCode::kOutOfDeviceMemory)
      require(at.status());
  }

  /// 0 when nothing is live.
  Address take_live(unsigned argument) {
    if (live_.empty()) return 0;
    const std::size_t which = argument % live_.size();
    const Address at = std::exchange(live_[which], live_.back());
    live_.pop_back();
    return at;
  }

  SimSource& source_;
  CachingAllocator cache_;
  std::vector<Address> live_;
  std::vector<Address> pending_;
  std::uint64_t synchronizations_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  check_settings({reinterpret_cast<const char*>(data + 2), size - 2});
  CacheOptions options;
  options.settings = *Settings::parse(kConfs[data[0] % std::size(kConfs)]);
  options.version = PolicyVersion::for_version(data[1] % 2 == 0 ? "2.11" : "2.13");
  options.locking = LockPolicy::kNone;
  SimSource source(Bytes((64ull << 20) << (data[1] / 2 % 6)));
  Program program(source, options);
  CachingAllocator& cache = program.cache();
  for (std::size_t i = 2; i + 2 < size; i += 3) {
    program.act(data[i], static_cast<std::uint32_t>(data[i + 1] | data[i + 2] << 8));
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
