// A granted peer writes a region of another card with its own engine, also after the pages were
// given to the driver and made again.
#include <gtest/gtest.h>

#include "arena/arena.h"
#include "conformance/device_words.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"

namespace neap::arena {
namespace {

TEST(ArenaPeer, WritesAfterEveryResume) {
  const auto loaded = device::cuda::load_driver();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().message();
  const device::cuda::Driver& driver = **loaded;
  const auto count = device::cuda_device_count();
  ASSERT_TRUE(count.ok()) << count.status().message();
  if (*count < 2) GTEST_SKIP() << "one GPU here; a peer needs two";
  int can = 0, peer_card = 0;
  ASSERT_EQ(driver.device_get(&peer_card, 1), 0);
  ASSERT_EQ(driver.can_access_peer(&can, peer_card, 0), 0);
  if (can == 0) GTEST_SKIP() << "GPU 1 cannot reach GPU 0";

  device::CudaOptions options;
  options.ordinal = 0;
  options.capacity = 1_GiB;
  auto made = device::make_cuda_device(options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  device::Device& device = **made;
  device::DeviceWords words(device, std::size_t{1} << 20);
  auto arena = std::move(Arena::make(device)).value();
  constexpr Bytes kSize = 64_MiB;
  const auto region = arena->create("weights", kSize, Policy::kHost);
  ASSERT_TRUE(region.ok()) << region.status().message();
  const Status granted = device.grant_peer(1);  // what is mapped already included
  ASSERT_TRUE(granted.ok()) << granted.message();

  device::cuda::Context peer = nullptr;
  ASSERT_EQ(driver.context_retain(&peer, peer_card), 0);
  for (unsigned char cycle = 1; cycle <= 20; ++cycle) {
    ASSERT_EQ(driver.context_push(peer), 0);
    device::cuda::Stream stream = nullptr;
    ASSERT_EQ(driver.stream_create(&stream, device::cuda::kStreamNonBlocking), 0);
    EXPECT_EQ(driver.fill_async(region->address, cycle, kSize.count(), stream), 0);
    EXPECT_EQ(driver.stream_synchronize(stream), 0) << "cycle " << int{cycle};
    EXPECT_EQ(driver.stream_destroy(stream), 0);
    (void)driver.context_pop(&peer);

    PauseOptions how;
    how.release_pages = cycle % 2 == 0;
    ASSERT_TRUE(arena->pause({}, how).ok());
    ASSERT_TRUE(arena->resume({}).ok());
    const std::uint64_t word = std::uint64_t{0x0101010101010101} * cycle;
    ASSERT_TRUE(words.holds(region->address, kSize, [&](std::size_t) { return word; }))
        << "cycle " << int{cycle};
  }
  EXPECT_EQ(driver.context_release(peer_card), 0);
}

}  // namespace
}  // namespace neap::arena
