// Long use and many threads: nothing grows, nothing races.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "arena/arena.h"
#include "conformance/device_words.h"
#include "conformance/devices.h"
#include "conformance/sanitizer.h"

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

class ArenaEndurance : public testing::TestWithParam<device::DeviceMaker> {
 protected:
  void SetUp() override {
    made_ = GetParam().make(units(4096));
    if (made_.real == nullptr) GTEST_SKIP() << GetParam().name << ": " << made_.skip_reason;
  }
  Bytes units(std::uint64_t n) const { return GetParam().unit * n; }
  device::MadeDevice made_;
};

TEST_P(ArenaEndurance, AThousandCyclesGrowNothing) {
  // glibc gives threads that meet at malloc 64 MiB of addresses each, at its own time: not the arena's growth.
  (void)mallopt(M_ARENA_MAX, 1);
  device::LedgerDevice& device = *made_.real;
  auto words = std::make_unique<device::DeviceWords>(device, std::size_t{1} << 16);
  auto arena = std::move(Arena::make(device)).value();
  std::vector<RegionInfo> kept;
  for (int i = 0; i < 6; ++i)
    kept.push_back(std::move(arena->create("weights", units(4), Policy::kHost)).value());
  kept.push_back(std::move(arena->create("optimizer", units(8), Policy::kDisk)).value());
  kept.push_back(std::move(arena->create("kv", units(64))).value());
  for (const auto& region : kept)
    words->fill(region.address, region.size, [&](std::size_t i) { return i ^ region.address; });
  Footprint first;
  device::Ledger::Usage usage;
  Bytes buffers;
  constexpr int kWarm = 20;
  for (int cycle = 0; cycle < 1000 + kWarm; ++cycle) {
    if (cycle == kWarm) {
      first = footprint();
      usage = device.usage();
      buffers = arena->stats().host_buffers;
    }
    ASSERT_TRUE(arena->pause({}).ok());
    const auto passing = arena->create("passing", units(16), Policy::kHost);
    ASSERT_TRUE(passing.ok());
    ASSERT_TRUE(device.fill(passing->address, passing->size, 0xee).ok());
    const std::vector<std::string> out = {"passing"};
    const std::vector<std::string> in = {"weights", "optimizer", "kv"};
    ASSERT_TRUE(arena->exchange(out, in).ok());
    ASSERT_TRUE(arena->destroy(passing->id).ok());
  }
  const Footprint last = footprint();
  EXPECT_EQ(device.usage(), usage);
  EXPECT_EQ(arena->stats().host_buffers, buffers);
  // One file may be on its way out at either moment: closed beside the caller.
  EXPECT_LE(last.descriptors, first.descriptors + 1);
  // A driver's own bookkeeping is in these, too: tests/gpu/arena compares it with plain driver calls.
  if (device.info().kind == device::Kind::kHost && !kInstrumented) {
    EXPECT_LE(last.mappings, first.mappings + 8);
    EXPECT_LE(last.address_space, first.address_space + 64 * 256) << "in system pages";
    EXPECT_LE(last.resident, first.resident + 8 * 256);
  }
  for (const auto& region : kept) {
    if (region.tag == "kv") continue;
    EXPECT_TRUE(words->holds(region.address, region.size, [&](std::size_t i) {
      return i ^ region.address;
    })) << region.tag;
  }
  arena.reset();
  words.reset();
  EXPECT_EQ(device.registered_hosts(), 0u);
  EXPECT_EQ(device.usage(), device::Ledger::Usage{});
}

/// What one of many threads does to an arena: moves of its own tags and of one that all share.
class BusyThread {
 public:
  BusyThread(Arena& arena, device::Device& device, std::uint8_t number, std::atomic<int>& failures)
      : arena_(arena), device_(device), number_(number), failures_(failures), random_(number) {}

  void run() {
    const auto a = arena_.create(own_[0], units(4), Policy::kHost);
    const auto b = arena_.create_paused(other_[0], units(3), Policy::kHost);
    fail_on(a.status());
    fail_on(b.status());
    if (!a.ok() || !b.ok()) return;
    fail_on(device_.fill(a->address, a->size, number_));
    for (int i = 0; i < 30 && failures_ == 0; ++i) {
      act(*a);
      check_contents(*a);
    }
  }

 private:
  void act(const RegionInfo& region) {
    switch (random_() % 6) {
      case 0:
        return fail_on(arena_.pause(kShared).status());
      case 1:
        return fail_on(arena_.resume(kShared).status());
      case 2:
        fail_on(arena_.exchange(own_, other_).status());
        return fail_on(arena_.exchange(other_, own_).status());
      case 3: {
        const auto passing = arena_.create("shared", units(2));
        fail_on(passing.status());
        if (passing.ok()) fail_on(arena_.destroy(passing->id));
        return;
      }
      case 4:
        (void)arena_.stats();
        (void)arena_.regions();
        return fail_on(arena_.find(region.address).status());
      default:
        fail_on(arena_.pause(own_).status());
        fail_on(arena_.release_store(units(16)).status());
        fail_on(arena_.resume(own_).status());
    }
  }

  void check_contents(const RegionInfo& region) {
    std::uint8_t byte = 0xff;
    const std::uint64_t place = random_() % region.size.count();
    const device::Copy copy{region.address + place, &byte, Bytes(1)};
    fail_on(device_.copy_to_host({&copy, 1}));
    if (byte == number_) return;
    ++failures_;
    ADD_FAILURE() << "thread " << int{number_} << ": byte " << place << " is " << int{byte};
  }

  void fail_on(const Status& status) {
    if (status.ok()) return;
    ++failures_;
    ADD_FAILURE() << status.message();
  }

  inline static const std::vector<std::string> kShared = {"shared"};
  [[nodiscard]] Bytes units(std::uint64_t n) const { return n * device_.info().granularity; }

  Arena& arena_;
  device::Device& device_;
  std::uint8_t number_;
  std::atomic<int>& failures_;
  std::mt19937 random_;
  std::vector<std::string> own_ = {"own" + std::to_string(number_)};
  std::vector<std::string> other_ = {"other" + std::to_string(number_)};
};

TEST_P(ArenaEndurance, SixteenThreads) {
  device::LedgerDevice& device = *made_.real;
  Options options;
  options.page_store_budget = units(128);
  auto arena = std::move(Arena::make(device, options)).value();
  ASSERT_TRUE(arena->create("shared", units(8), Policy::kHost).ok());
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (std::uint8_t t = 0; t < 16; ++t)
    threads.emplace_back([&, t] { BusyThread(*arena, device, t, failures).run(); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  arena.reset();
  EXPECT_EQ(device.usage(), device::Ledger::Usage{});
}

INSTANTIATE_TEST_SUITE_P(Every, ArenaEndurance,
                         testing::Values(device::host_maker("Host", 64_KiB), device::cuda_maker()),
                         [](const auto& maker) { return maker.param.name; });

}  // namespace
}  // namespace neap::arena
