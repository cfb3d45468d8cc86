#include "base/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace neap {
namespace {

using ::testing::HasSubstr;
using Outcome = Regex::Outcome;

Regex made(std::string_view pattern, const Regex::Options& options = {}) {
  auto regex = Regex::compile(pattern, options);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  return *regex;
}

class RegexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto probe = Regex::compile("a", {});
    if (!probe.ok()) GTEST_SKIP() << probe.status().message();
  }
  Regex::Finds finds_;
};

TEST_F(RegexTest, FindsMatchesAndTheFirstGroup) {
  const Regex regex = made("b(c)?");
  ASSERT_EQ(regex.search("abcab", 0, finds_), Outcome::kFound);
  EXPECT_EQ(finds_.match().begin, 1u);
  EXPECT_EQ(finds_.match().end, 3u);
  EXPECT_EQ(finds_.first_group()->begin, 2u);
  ASSERT_EQ(regex.search("abcab", 3, finds_), Outcome::kFound);
  EXPECT_EQ(finds_.match().begin, 4u);
  EXPECT_FALSE(finds_.first_group().has_value()) << "the group took no part";
  EXPECT_EQ(regex.search("abcab", 5, finds_), Outcome::kNone);
  ASSERT_EQ(made("b").search("ab", 0, finds_), Outcome::kFound);
  EXPECT_EQ(finds_.first_group()->begin, 1u) << "no group: the match";
}

TEST_F(RegexTest, OptionsSayWhatMatches) {
  EXPECT_EQ(made("b").search("abc", 0, finds_), Outcome::kFound);
  EXPECT_EQ(made("b", {.whole_text = true}).search("abc", 0, finds_), Outcome::kNone);
  EXPECT_EQ(made("^b").search("a\nb", 0, finds_), Outcome::kNone);
  EXPECT_EQ(made("^b", {.multiline = true}).search("a\nb", 0, finds_), Outcome::kFound);
  EXPECT_EQ(made("\\w").search("\u00e9", 0, finds_), Outcome::kFound);
  EXPECT_EQ(made("\\w", {.unicode = false}).search("\u00e9", 0, finds_), Outcome::kNone);
  ASSERT_EQ(made("b.").search("\xff"
                              "b\xff"
                              "bc",
                              0, finds_),
            Outcome::kFound);
  EXPECT_EQ(finds_.match().begin, 3u) << "bytes that are not UTF-8 match nothing";
}

TEST_F(RegexTest, WorkIsBounded) {
  const std::string text(60, 'a');  // 2^60 ways to try
  for (const bool valid : {false, true}) {
    const Regex regex = made("(a+)+[bc]", {.valid_utf8 = valid, .step_limit = 100'000});
    EXPECT_EQ(regex.search(text, 0, finds_), Outcome::kGaveUp);
    EXPECT_THAT(finds_.reason(), HasSubstr("limit"));
  }
}

TEST_F(RegexTest, WhatDoesNotCompileSaysWhere) {
  const Status status = Regex::compile("ab(c", {}).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("(character 5)"));
}

}  // namespace
}  // namespace neap
