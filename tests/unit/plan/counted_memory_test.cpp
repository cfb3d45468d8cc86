#include "plan/counting/counted_memory.h"

#include <gtest/gtest.h>

namespace neap::plan {
namespace {

TEST(CountedMemoryTest, KeepsPeaksAndFreesWhatIsReleased) {
  CountedMemory memory{cache::Settings{}};
  const std::uint64_t a = memory.allocate(3 << 20);
  const std::uint64_t b = memory.allocate(5 << 20);
  EXPECT_NE(a, 0u);
  memory.release(a);
  memory.release(0);
  EXPECT_EQ(memory.allocated(), 5_MiB);
  EXPECT_EQ(memory.peak_allocated(), 8_MiB);
  EXPECT_EQ(memory.peak_reserved(), 20_MiB);
  memory.release(b);
  EXPECT_TRUE(memory.status().ok());
}

TEST(CountedMemoryTest, KeepsTheFirstFailure) {
  CountedMemory memory{cache::Settings{}};
  memory.release(0x1000);
  const std::string first = memory.status().message();
  EXPECT_FALSE(memory.status().ok());
  memory.release(0x2000);
  EXPECT_EQ(memory.status().message(), first);
  EXPECT_EQ(memory.allocate(512), 0u) << "requests after a failure";
}

TEST(CountedMemoryTest, ARequestThatNothingHoldsFails) {
  CountedMemory memory{cache::Settings{}};
  EXPECT_EQ(memory.allocate(std::int64_t{1} << 50), 0u);
  EXPECT_EQ(memory.status().code(), ErrorCode::kOutOfDeviceMemory);
}

}  // namespace
}  // namespace neap::plan
