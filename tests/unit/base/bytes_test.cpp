#include "base/bytes.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace neap {
namespace {

TEST(Bytes, PrintsBinaryUnits) {
  EXPECT_EQ(to_string(0_B), "0 B");
  EXPECT_EQ(to_string(1023_B), "1023 B");
  EXPECT_EQ(to_string(384_MiB), "384 MiB");
  EXPECT_EQ(to_string(Bytes((1ull << 30) * 3 / 2)), "1.50 GiB");
  EXPECT_EQ(to_string(Bytes(123456789)), "117.7 MiB");
}

TEST(Bytes, ParsesUnitsAndRefusesBareNumbers) {
  EXPECT_EQ(parse_bytes("24GiB").value(), 24_GiB);
  EXPECT_EQ(parse_bytes(" 1.5 MiB ").value(), 1536_KiB);
  EXPECT_EQ(parse_bytes("2GB").value(), Bytes(2'000'000'000));
  EXPECT_EQ(parse_bytes("0 B").value(), 0_B);
  EXPECT_NE(parse_bytes("24").status().message().find("has no unit"), std::string::npos);
  EXPECT_NE(parse_bytes("24Gib").status().message().find("not a unit"), std::string::npos);
  EXPECT_FALSE(parse_bytes("").ok());
  EXPECT_FALSE(parse_bytes("-1GiB").ok());
  EXPECT_FALSE(parse_bytes("1e30GiB").ok());
  EXPECT_FALSE(parse_bytes("nanGiB").ok());
}

TEST(Bytes, RoundsToUnits) {
  EXPECT_EQ(round_up(1_B, 2_MiB), 2_MiB);
  EXPECT_EQ(round_up(2_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(round_down(3_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(saturating_sub(1_MiB, 2_MiB), 0_B);
}

}  // namespace
}  // namespace neap
