// The work on every allocation and every free: finding, creating and destroying a region.
#include <random>

#include "arena/arena.h"
#include "base/format.h"
#include "bench/cases.h"
#include "bench/plain.h"

namespace neap::bench {
namespace {

constexpr std::uint64_t kLookupRegions = 2048;

}  // namespace

Status run_lookup(Bench& bench) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  NEAP_TRY_ASSIGN(const auto arena, arena::Arena::make(*device));
  const Bytes each = device->info().granularity;
  const std::uint64_t count = std::min(kLookupRegions, device->info().capacity / each / 2);
  std::vector<arena::RegionInfo> regions;
  for (std::uint64_t i = 0; i < count; ++i) {
    NEAP_TRY_ASSIGN(arena::RegionInfo region, arena->create("weights", each));
    regions.push_back(std::move(region));
  }
  std::sort(regions.begin(), regions.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  std::vector<device::Address> begins;
  for (const auto& region : regions) begins.push_back(region.address);

  std::mt19937_64 random(1);
  std::vector<device::Address> asked(1 << 16);
  for (auto& at : asked) {
    const auto& region = regions[random() % regions.size()];
    at = region.address + random() % region.size.count();
  }
  const auto bare = [&](device::Address at) {
    return regions[static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), at) -
                                            begins.begin() - 1)]
        .id;
  };
  for (const device::Address at : asked) {
    const auto found = arena->find(at);
    if (!found.ok() || found->id != bare(at))
      return {ErrorCode::kInternal, format("the wrong region was found for {:#x}", at)};
  }
  Series ours, plain;
  std::uint64_t sum = 0;
  const auto ns = [&](const Timer& timer) {
    return timer.ms() * 1e6 / static_cast<double>(asked.size());
  };
  for (int i = 0; i < bench.cycles(); ++i) {
    const Timer timer;
    for (const device::Address at : asked) sum += static_cast<std::uint64_t>(arena->find(at)->id);
    ours.add(ns(timer));
    const Timer again;
    for (const device::Address at : asked) sum -= static_cast<std::uint64_t>(bare(at));
    plain.add(ns(again));
  }
  if (sum != 0) return {ErrorCode::kInternal, "lookups do not agree"};
  bench.add({"lookup",
             "find",
             "ns",
             Better::kLess,
             ours,
             plain,
             "binary search in a bare array",
             {{"regions", regions.size()}}});
  return {};
}

Status run_region(Bench& bench) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  NEAP_TRY_ASSIGN(const auto arena, arena::Arena::make(*device));
  const Bytes each = 2_MiB;
  const std::uint64_t count = std::min(kLookupRegions, device->info().capacity / each / 2);
  for (std::uint64_t i = 0; i < count; ++i) NEAP_TRY(arena->create("weights", each).status());
  NEAP_TRY_ASSIGN(const auto plain, PlainRegion::make(*device, each, false));
  Series create, destroy, take, give, over_create, over_destroy;
  for (int i = 0; i < bench.cycles() * 50; ++i) {
    const Timer a;
    NEAP_TRY_ASSIGN(const auto region, arena->create("weights", each));
    const double create_us = a.ms() * 1e3;
    const Timer b;
    NEAP_TRY(arena->destroy(region.id));
    const double destroy_us = b.ms() * 1e3;
    NEAP_TRY(plain->enter());
    const Timer c;
    NEAP_TRY(plain->take());
    const double take_us = c.ms() * 1e3;
    const Timer d;
    NEAP_TRY(plain->give());
    const double give_us = d.ms() * 1e3;
    plain->leave();
    create.add(create_us);
    destroy.add(destroy_us);
    take.add(take_us);
    give.add(give_us);
    over_create.add(create_us - take_us);
    over_destroy.add(destroy_us - give_us);
  }
  bench.add({"region",
             "create, page kept",
             "us",
             Better::kLess,
             create,
             take,
             "map and access by the driver",
             {{"regions", count}, {"over_us", over_create.median()}}});
  bench.add({"region",
             "destroy, page kept",
             "us",
             Better::kLess,
             destroy,
             give,
             "unmap by the driver",
             {{"regions", count}, {"over_us", over_destroy.median()}}});
  return {};
}

}  // namespace neap::bench
