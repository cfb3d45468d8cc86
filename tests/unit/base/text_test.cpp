#include "base/text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/utf8.h"

namespace neap {
namespace {

TEST(Text, ShortensInColumns) {
  EXPECT_EQ(shortened("short", 20), "short");
  EXPECT_EQ(shortened("0123456789abcdefghij", 13), "0123 ... ghij");
  EXPECT_EQ(columns_of("a\xcc\x81\xe6\xbc\xa2"), 3u);  // combining, wide
  for (std::size_t columns = 1; columns < 40; ++columns) {
    std::string wide;
    for (int i = 0; i < 30; ++i) wide += "\xe6\xbc\xa2";
    EXPECT_LE(columns_of(shortened(wide, columns)), std::max<std::size_t>(columns, 2));
  }
}

TEST(Text, ExcerptsEndWithAWholeCharacter) {
  EXPECT_EQ(excerpt("short", 5), "short");
  EXPECT_EQ(excerpt("longer", 5), "longe...");
  const std::string text = "a\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x98\x80z";  // 1, 2, 3, 4 and 1 bytes
  for (std::size_t bytes = 0; bytes <= text.size(); ++bytes) {
    EXPECT_LE(front_of(text, bytes).size(), bytes);
    EXPECT_TRUE(is_utf8(front_of(text, bytes))) << bytes;
  }
  EXPECT_EQ(front_of(text, 5).size(), 3U);
  EXPECT_EQ(front_of(text, 10).size(), 10U);
  EXPECT_EQ(front_of(std::string(9, '\x80'), 6).size(), 6U) << "not UTF-8";
}

}  // namespace
}  // namespace neap
