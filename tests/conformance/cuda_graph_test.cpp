// Whatever ends a capture, the stream computes afterwards. Graphs themselves need a card: tests/gpu.
#include <gtest/gtest.h>

#include "conformance/devices.h"
#include "device/cuda/graph.h"

namespace neap::device::cuda {
namespace {

TEST(CudaGraph, AFailedCaptureLeavesTheStreamAsItWas) {
  const auto loaded = load_driver();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().message();
  const Driver& driver = **loaded;
  const MadeDevice made = cuda_maker().make(64_MiB);
  ASSERT_NE(made.real, nullptr) << made.skip_reason;
  Context context = nullptr;
  int card = 0;
  ASSERT_EQ(driver.device_get(&card, 0), 0);
  ASSERT_EQ(driver.context_retain(&context, card), 0);
  ASSERT_EQ(driver.context_push(context), 0);
  Stream stream = nullptr;
  ASSERT_EQ(driver.stream_create(&stream, kStreamNonBlocking), 0);

  const auto failing = ExecutableGraph::capture(
      driver, stream, [] { return Status(ErrorCode::kUnsupported, "the work's own error"); });
  ASSERT_FALSE(failing.ok());
  EXPECT_EQ(failing.status().message(), "the work's own error");
  EXPECT_EQ(driver.stream_synchronize(stream), 0);

  int waited = 0;
  const auto waiting = ExecutableGraph::capture(driver, stream, [&]() -> Status {
    waited = driver.stream_synchronize(stream);
    return {};
  });
  EXPECT_NE(waited, 0) << "a captured stream cannot be waited for";
  EXPECT_FALSE(waiting.ok());
  EXPECT_EQ(driver.stream_synchronize(stream), 0);
  EXPECT_EQ(driver.stream_destroy(stream), 0);
  (void)driver.context_pop(&context);
}

}  // namespace
}  // namespace neap::device::cuda
