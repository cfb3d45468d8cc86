// Benchmarks of the caching allocator and of replay, which need no device.
#include <cstdlib>
#include <random>

#include "bench/cases.h"
#include "cache/caching_allocator.h"
#include "cache/sim_source.h"
#include "replay/what_if.h"
#include "replay/workload.h"
#include "trace/recording.h"

namespace neap::bench {
namespace {

constexpr Bytes kCard = 80_GiB;
constexpr std::size_t kLive = 1024;  // blocks alive at once
constexpr std::size_t kOperations = 1 << 17;

/// Sizes as in a training step: many small ones and some of tens of MiB.
std::vector<Bytes> request_sizes() {
  std::mt19937_64 random(3);
  std::vector<Bytes> sizes(kOperations);
  for (Bytes& size : sizes) {
    const std::uint64_t most = 1ull << (9 + random() % 17);
    size = Bytes(1 + random() % most);
  }
  return sizes;
}

/// Repeatedly frees a random block and allocates the next. Returns ns per pair.
template <class Take, class Give>
Result<double> churn(const std::vector<Bytes>& sizes, Take take, Give give) {
  using Block = typename std::invoke_result_t<Take, Bytes>;
  std::mt19937_64 random(5);
  std::vector<std::size_t> victims(sizes.size());
  for (std::size_t& victim : victims) victim = random() % kLive;
  std::vector<Block> live;
  for (std::size_t i = 0; i < kLive; ++i) live.push_back(take(sizes[i]));
  const Timer timer;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    give(live[victims[i]]);
    live[victims[i]] = take(sizes[i]);
  }
  const double ns = timer.ms() * 1e6 / static_cast<double>(sizes.size());
  for (const Block block : live) give(block);
  return ns;
}

class Collector final : public trace::EventSink {
 public:
  void record(const trace::Event& event) override {
    events.push_back(event);
    events.back().time_ns = events.size();
  }
  std::uint32_t intern(std::string_view) override { return 0; }
  std::vector<trace::Event> events;
};

}  // namespace

Status run_cache(Bench& bench) {
  const auto sizes = request_sizes();
  std::vector<Bytes> small = sizes;
  for (Bytes& size : small) size = Bytes(16 + size.count() % 1008);
  cache::SimSource source(kCard);
  cache::CachingAllocator cache(source, {});
  Status failed;
  Series ours, plain;
  for (int i = 0; i <= bench.cycles(); ++i) {
    NEAP_TRY_ASSIGN(const double ns, churn(
                                         sizes,
                                         [&](Bytes size) -> cache::Address {
                                           auto at = cache.malloc(size);
                                           if (!at.ok()) failed = at.status();
                                           return at.ok() ? *at : 0;
                                         },
                                         [&](cache::Address at) {
                                           if (Status status = cache.free(at); !status.ok())
                                             failed = std::move(status);
                                         }));
    NEAP_TRY(Status(failed));
    NEAP_TRY_ASSIGN(const double libc,
                    churn(
                        small, [](Bytes size) { return std::malloc(size.count()); },
                        [](void* at) { std::free(at); }));
    if (i == 0) continue;
    ours.add(ns);
    plain.add(libc);
  }
  if (!cache.stats().allocated.is_zero())
    return {ErrorCode::kInternal, "the cache holds bytes that were freed"};
  bench.add({"cache",
             "free and allocate",
             "ns",
             Better::kLess,
             ours,
             plain,
             "malloc and free of the C library, up to 1 KiB",
             {{"live", kLive}}});
  return {};
}

Status run_replay(Bench& bench) {
  trace::Recording recording;
  recording.devices.emplace_back();
  {
    Collector collector;
    cache::SimSource source(kCard);
    cache::CacheOptions options;
    options.events = &collector;
    cache::CachingAllocator cache(source, options);
    Status failed;
    NEAP_TRY(churn(
                 request_sizes(),
                 [&](Bytes size) -> cache::Address {
                   auto at = cache.malloc(size);
                   if (!at.ok()) failed = at.status();
                   return at.ok() ? *at : 0;
                 },
                 [&](cache::Address at) { failed = cache.free(at); })
                 .status());
    NEAP_TRY(Status(failed));
    NEAP_TRY(cache.empty_cache());
    recording.devices[0].events = std::move(collector.events);
  }
  recording.devices[0].has_times = true;
  NEAP_TRY_ASSIGN(const auto workload, replay::prepare(recording, recording.devices[0]));
  NEAP_TRY_ASSIGN(const auto scenario, replay::Scenario::make("", "none", 0, workload.version));
  Series events;
  for (int i = 0; i <= bench.cycles(); ++i) {
    const Timer timer;
    NEAP_TRY_ASSIGN(const auto outcome, replay::run_scenario(workload, scenario, kCard));
    const double ms = timer.ms();
    if (outcome.oom || outcome.events == 0)
      return {ErrorCode::kInternal, "the replay did not come to its end"};
    if (i > 0) events.add(static_cast<double>(workload.allocator_events) / ms / 1e3);
  }
  bench.add({"replay",
             "events",
             "M/s",
             Better::kMore,
             events,
             {},
             "",
             {{"events", workload.allocator_events}}});
  return {};
}

}  // namespace neap::bench
