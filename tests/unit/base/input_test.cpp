// The window of a file that readers see: its ends, and borders of what was read at once.
#include "base/input.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace neap {
namespace {

std::vector<std::uint8_t> bytes(std::size_t count) {
  std::vector<std::uint8_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  return all;
}

TEST(InputTest, EnsureIsTrueUpToTheLastByteWhereverTheBufferEnds) {
  // Buffers are 1 MiB and less; sizes around multiples of it.
  for (const std::size_t size : {0U, 1U, 8U, (1U << 20) - 16, (1U << 20) + 8, (3U << 20) + 1}) {
    SCOPED_TRACE(size);
    const auto all = bytes(size);
    for (const std::size_t left : {1U, 8U, 4096U}) {
      if (left > size) continue;
      Input input = std::move(Input::over(all, "bytes")).value();
      ASSERT_TRUE(input.skip(size - left));
      EXPECT_EQ(input.position(), size - left);
      ASSERT_TRUE(input.ensure(left)) << left << " bytes are left";
      EXPECT_EQ(input.data()[0], all[size - left]);
      EXPECT_EQ(input.data()[left - 1], all[size - 1]);
      EXPECT_FALSE(input.ensure(left + 1));
      EXPECT_TRUE(input.status().ok()) << "the end of the file is no failure";
      ASSERT_TRUE(input.ensure(left));
      input.advance(left);
      EXPECT_EQ(input.position(), size);
      EXPECT_FALSE(input.ensure(1));
      EXPECT_FALSE(input.skip(1));
      EXPECT_TRUE(input.skip(0));
    }
  }
}

TEST(InputTest, ALengthLongerThanTheFileIsRefused) {
  const auto all = bytes(100);
  Input input = std::move(Input::over(all, "bytes")).value();
  EXPECT_FALSE(input.ensure(std::size_t{1} << 40));
  EXPECT_TRUE(input.ensure(100)) << "and costs no memory";
  EXPECT_FALSE(input.skip(std::uint64_t{1} << 60));
}

}  // namespace
}  // namespace neap
