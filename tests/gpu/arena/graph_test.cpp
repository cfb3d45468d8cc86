// A graph captured over regions replays on the same addresses after any number of cycles.
#include <gtest/gtest.h>

#include "arena/arena.h"
#include "conformance/device_words.h"
#include "conformance/devices.h"
#include "device/cuda/driver.h"
#include "device/cuda/graph.h"

namespace neap::arena {
namespace {

using device::cuda::Driver;
using device::cuda::ExecutableGraph;
using device::cuda::Stream;

TEST(ArenaGraph, ReplaysAfterAThousandCycles) {
  const auto loaded = device::cuda::load_driver();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().message();
  const Driver& driver = **loaded;
  auto made = device::cuda_maker().make(2_GiB);
  ASSERT_NE(made.real, nullptr) << made.skip_reason;
  device::LedgerDevice& device = *made.real;
  device::cuda::Context context = nullptr;
  int card = 0;
  ASSERT_EQ(driver.device_get(&card, 0), 0);
  ASSERT_EQ(driver.context_retain(&context, card), 0);
  ASSERT_EQ(driver.context_push(context), 0);

  constexpr Bytes kSize = 16_MiB;
  device::DeviceWords words(device, std::size_t{1} << 20);
  auto arena = std::move(Arena::make(device)).value();
  const auto from = arena->create("weights", kSize, Policy::kHost);
  const auto to = arena->create("graphs", kSize, Policy::kDiscard);
  ASSERT_TRUE(from.ok() && to.ok());
  const auto pattern = [](std::size_t i) { return i * 0x9e3779b97f4a7c15u; };
  words.fill(from->address, kSize, pattern);

  Stream stream = nullptr;
  ASSERT_EQ(driver.stream_create(&stream, device::cuda::kStreamNonBlocking), 0);
  const auto graph = ExecutableGraph::capture(driver, stream, [&]() -> Status {
    NEAP_TRY(
        to_status(driver, driver.fill_async(to->address, 0x11, kSize.count(), stream), "fill"));
    return to_status(
        driver, driver.copy_on_device_async(to->address, from->address, kSize.count() / 2, stream),
        "copy");
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->nodes(), 2u);

  const Bytes half = kSize / 2u;
  for (int cycle = 0; cycle < 1000; ++cycle) {
    PauseOptions options;
    options.release_pages = cycle % 2 == 0;
    ASSERT_TRUE(arena->pause({}, options).ok());
    ASSERT_TRUE(arena->resume({}).ok());
    ASSERT_TRUE(graph->launch(stream).ok());
    ASSERT_EQ(driver.stream_synchronize(stream), 0);
    ASSERT_TRUE(words.holds(to->address, half, pattern)) << "cycle " << cycle;
    ASSERT_TRUE(words.holds(to->address + half.count(), half,
                            [](std::size_t) { return std::uint64_t{0x1111111111111111}; }))
        << "cycle " << cycle;
  }
  EXPECT_EQ(driver.stream_destroy(stream), 0);
  (void)driver.context_pop(&context);
}

}  // namespace
}  // namespace neap::arena
