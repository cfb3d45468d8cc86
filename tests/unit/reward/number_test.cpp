#include "reward/number.h"

#include <gtest/gtest.h>

namespace neap::reward {
namespace {

TEST(Number, HasOneWayToBeWritten) {
  const std::pair<const char*, const char*> same[] = {
      {"42", "42"},       {"+42", "42"},
      {"0042", "42"},     {"42.0", "42"},
      {"42.", "42"},      {"-0", "0"},
      {"-0.50", "-0.5"},  {".5", "0.5"},
      {"1,234", "1234"},  {"1,234,567.8", "1234567.8"},
      {"1e3", "1000"},    {"1.25e1", "12.5"},
      {"125E-2", "1.25"}, {"1e-3", "0.001"},
      {"0e5", "0"},       {"12345678901234567891", "12345678901234567891"},
      {"1.50e+0", "1.5"}};
  for (const auto& [text, canonical] : same) {
    const auto read = canonical_decimal(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(*read, canonical) << text;
  }
}

TEST(Number, OtherTextIsNone) {
  for (const char* text : {"", "-", "+", ".", "abc", "1,23", "1,2345", ",123", "1 2", "--1", "1e",
                           "1e9999", "0x10", "1.2.3", "1/2", "5%", "e5", "1e5x", "\xff"})
    EXPECT_FALSE(canonical_decimal(text)) << text;
  EXPECT_FALSE(canonical_decimal(std::string(100'000, '1')));
}

TEST(Number, IsFoundInProse) {
  EXPECT_EQ(*last_number("He pays $5 and then $1,200.50."), "1,200.50");
  EXPECT_EQ(*last_number("It fell to -7 degrees"), "-7");
  EXPECT_EQ(*last_number("5-3"), "3");
  EXPECT_EQ(*last_number("x-3"), "3");
  EXPECT_EQ(*last_number("(2)-3"), "3");
  EXPECT_EQ(*last_number("= -3"), "-3");
  EXPECT_EQ(*last_number("-3"), "-3");
  EXPECT_EQ(*last_number("1, 2, 3"), "3");
  EXPECT_EQ(*last_number("Call 1,23"), "23");
  EXPECT_EQ(*last_number("v1.2.3"), "3");
  EXPECT_EQ(*last_number(".5"), ".5");
  EXPECT_FALSE(last_number("none, at all."));
  EXPECT_FALSE(last_number(""));
}

}  // namespace
}  // namespace neap::reward
