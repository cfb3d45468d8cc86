// Long use and many threads: nothing grows, nothing races.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "arena/arena.h"
#include "device/host/host_device.h"

namespace neap::arena {
namespace {

struct Footprint {
  std::size_t mappings = 0, descriptors = 0;
  std::uint64_t address_space = 0, resident = 0;
};

Footprint footprint() {
  Footprint now;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++now.mappings;
  std::ifstream statm("/proc/self/statm");
  statm >> now.address_space >> now.resident;
  for (int fd = 0; fd < 20000; ++fd)
    if (::access(("/proc/self/fd/" + std::to_string(fd)).c_str(), F_OK) == 0) ++now.descriptors;
  return now;
}

std::unique_ptr<device::HostDevice> make_device(Bytes capacity) {
  device::HostOptions host;
  host.capacity = capacity;
  host.granularity = 64_KiB;
  return std::move(device::make_host_device(host)).value();
}

TEST(ArenaEndurance, AThousandCyclesGrowNothing) {
  // glibc gives threads that meet at malloc 64 MiB of addresses each, at its own time: not the arena's growth.
  (void)mallopt(M_ARENA_MAX, 1);
  const auto device = make_device(64_MiB);
  auto arena = std::move(Arena::make(*device)).value();
  std::vector<RegionInfo> kept;
  for (int i = 0; i < 6; ++i)
    kept.push_back(std::move(arena->create("weights", 256_KiB, Policy::kHost)).value());
  kept.push_back(std::move(arena->create("optimizer", 2_MiB, Policy::kDisk)).value());
  kept.push_back(std::move(arena->create("kv", 4_MiB)).value());
  for (const auto& region : kept)
    std::memset(reinterpret_cast<void*>(region.address), 0x5a, region.size.count());
  Footprint first;
  device::Ledger::Usage usage;
  Bytes buffers;
  constexpr int kWarm = 20;
  for (int cycle = 0; cycle < 1000 + kWarm; ++cycle) {
    if (cycle == kWarm) {
      first = footprint();
      usage = device->usage();
      buffers = arena->stats().host_buffers;
    }
    ASSERT_TRUE(arena->pause({}).ok());
    const auto passing = arena->create("passing", 1_MiB, Policy::kHost);
    ASSERT_TRUE(passing.ok());
    std::memset(reinterpret_cast<void*>(passing->address), cycle, passing->size.count());
    const std::vector<std::string> out = {"passing"};
    const std::vector<std::string> in = {"weights", "optimizer", "kv"};
    ASSERT_TRUE(arena->exchange(out, in).ok());
    ASSERT_TRUE(arena->destroy(passing->id).ok());
  }
  const Footprint last = footprint();
  EXPECT_EQ(device->usage(), usage);
  EXPECT_EQ(arena->stats().host_buffers, buffers);
  EXPECT_EQ(last.descriptors, first.descriptors);
  EXPECT_LE(last.mappings, first.mappings + 8);
  EXPECT_LE(last.address_space, first.address_space + 64 * 256) << "in system pages";
  EXPECT_LE(last.resident, first.resident + 8 * 256);
  for (const auto& region : kept) {
    if (region.tag == "kv") continue;
    EXPECT_EQ(*reinterpret_cast<unsigned char*>(region.address + 777), 0x5a);
  }
  arena.reset();
  EXPECT_EQ(device->usage(), device::Ledger::Usage{});
}

TEST(ArenaEndurance, SixteenThreads) {
  const auto device = make_device(256_MiB);
  Options options;
  options.page_store_budget = 8_MiB;
  auto arena = std::move(Arena::make(*device, options)).value();
  const std::vector<std::string> shared = {"shared"};
  ASSERT_TRUE(arena->create("shared", 512_KiB, Policy::kHost).ok());
  std::atomic<int> failures{0};
  const auto fail_on = [&](const Status& status) {
    if (status.ok()) return;
    ++failures;
    ADD_FAILURE() << status.message();
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const std::vector<std::string> own = {"own" + std::to_string(t)};
      const std::vector<std::string> other = {"other" + std::to_string(t)};
      auto a = arena->create(own[0], 256_KiB, Policy::kHost);
      auto b = arena->create_paused(other[0], 192_KiB, Policy::kHost);
      fail_on(a.status());
      fail_on(b.status());
      if (!a.ok() || !b.ok()) return;
      auto* bytes = reinterpret_cast<unsigned char*>(a->address);
      std::memset(bytes, static_cast<int>(t), a->size.count());
      for (int i = 0; i < 30 && failures == 0; ++i) {
        switch (random() % 6) {
          case 0:
            fail_on(arena->pause(shared).status());
            break;
          case 1:
            fail_on(arena->resume(shared).status());
            break;
          case 2:
            fail_on(arena->exchange(own, other).status());
            fail_on(arena->exchange(other, own).status());
            break;
          case 3: {
            const auto passing = arena->create("shared", 128_KiB);
            fail_on(passing.status());
            if (passing.ok()) fail_on(arena->destroy(passing->id));
            break;
          }
          case 4:
            (void)arena->stats();
            (void)arena->regions();
            fail_on(arena->find(a->address).status());
            break;
          default:
            fail_on(arena->pause(own).status());
            fail_on(arena->release_store(1_MiB).status());
            fail_on(arena->resume(own).status());
        }
        if (bytes[i * 4096] != t) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  arena.reset();
  EXPECT_EQ(device->usage(), device::Ledger::Usage{});
}

}  // namespace
}  // namespace neap::arena
