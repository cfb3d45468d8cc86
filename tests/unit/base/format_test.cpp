#include "base/format.h"

#include <gtest/gtest.h>

namespace neap {
namespace {

TEST(Format, WritesEveryKindOfArgument) {
  const std::string text = "kv";
  const std::string_view view = "weights";
  EXPECT_EQ(format("{} of {} in {}: {}", 3_MiB, text, view, true), "3 MiB of kv in weights: true");
  EXPECT_EQ(format("{} {} {:#x} {:>4} {}", -7, 18446744073709551615u, 0x7f00u, 12, 'c'),
            "-7 18446744073709551615 0x7f00   12 c");
  EXPECT_EQ(format("{:.2f} {}", 0.125, 1.5F), "0.12 1.5");
}

TEST(Format, TakesArgumentsByNumberAndBraces) {
  EXPECT_EQ(format("{1} before {0}, {{}}", "a", "b"), "b before a, {}");
  EXPECT_EQ(format("no argument"), "no argument");
}

}  // namespace
}  // namespace neap
