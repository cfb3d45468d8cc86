#include "reward/expression_parser.h"

#include <gtest/gtest.h>

#include <cmath>

namespace neap::reward {
namespace {

TEST(Expression, IsReadAsItIsWritten) {
  const auto value = [](const char* text) {
    const auto e = parse_expression(text);
    return e ? e->evaluate({}).value.real() : std::nan("");
  };
  EXPECT_EQ(value("1+2*3"), 7);
  EXPECT_EQ(value("2^3^2"), 512);
  EXPECT_EQ(value("-2^2"), -4);
  EXPECT_EQ(value("2^{-1}"), 0.5);
  EXPECT_EQ(value("8/4/2"), 1);
  EXPECT_EQ(value("1-2-3"), -4);
  EXPECT_EQ(value("2(3+4)"), 14);
  EXPECT_EQ(value("(1)(2)(3)"), 6);
  EXPECT_EQ(value("1.5e3"), 1500);
  EXPECT_EQ(value("3!!"), 720);
  for (const char* wrong : {"", "1+", "*2", "1 2", "(1", "1)", "\\frac{1}", "\\foo", "abc", "2**3",
                            "1..2", "[1", "\\sqrt", "()", "^2", "|1"})
    EXPECT_FALSE(parse_expression(wrong)) << wrong;
}

}  // namespace
}  // namespace neap::reward
