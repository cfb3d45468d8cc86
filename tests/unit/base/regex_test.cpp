#include "base/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/budget.h"

namespace neap {
namespace {

using ::testing::HasSubstr;
using Outcome = Regex::Outcome;

constexpr ReadLimits kLimits{.what = "a test",
                             .memory = {64.0 * (1 << 20), 0},
                             .steps = {1e5, 0},
                             .seconds = {0.2, 0},
                             .advice = "wait"};

Regex made(std::string_view pattern, const Regex::Options& options = {}) {
  auto regex = Regex::compile(pattern, kLimits, options);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  return *regex;
}

class RegexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto probe = Regex::compile("a", kLimits, {});
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
    const Regex regex = made("(a+)+[bc]", {.valid_utf8 = valid});
    EXPECT_EQ(regex.search(text, 0, finds_), Outcome::kFailed);
    const Status why = finds_.failure("the pattern");
    EXPECT_EQ(why.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(why.message(), "the pattern takes over the limit of 100000 steps for a test; wait");
  }
}

// From each start the pattern stays below the limit of steps, and there are many starts.
TEST_F(RegexTest, TheTimeOfASearchIsBounded) {
  std::string text;
  while (text.size() < 4'000'000) text += "xy";
  for (const bool valid : {false, true}) {
    const Regex regex = made("x.{0,300}y.{0,300}z", {.valid_utf8 = valid});
    const double began = processor_seconds();
    EXPECT_EQ(regex.search(text, 0, finds_), Outcome::kFailed);
    EXPECT_LT(processor_seconds() - began, 20);
    EXPECT_THAT(finds_.failure("it").message(), HasSubstr("0.2 s of processor time"));
  }
}

TEST_F(RegexTest, ASearchInSpansFindsTheSame) {
  const std::string quiet(5000, 'q');
  const std::string text = "\n" + quiet + "\u00e9\u00e9\xff" + quiet + "abcd" + quiet + "\nabce";
  const std::size_t first = text.find("abcd"), second = text.find("abce");
  for (const auto& [pattern, at] : std::vector<std::pair<const char*, std::size_t>>{
           {"abc", first},
           {"(?<=q)abc", first},
           {"(?m)^abc", second},
           {"abce\\z", second},
           {".*abce", second},
       }) {
    ASSERT_EQ(made(pattern).search(text, 0, finds_), Outcome::kFound) << pattern;
    EXPECT_EQ(finds_.match().begin, at) << pattern;
  }
  EXPECT_EQ(made("\\Aabc").search(text, 0, finds_), Outcome::kNone);
  EXPECT_EQ(made("\\Gabc", {.divisible = false}).search(text, 0, finds_), Outcome::kNone);
}

// A start that PCRE2 would try once is not tried anew in every span, which takes minutes.
TEST_F(RegexTest, ATextOfOneStartIsReadOnce) {
  const std::string text(4 << 20, 'q');
  const double began = processor_seconds();
  for (const char* pattern : {"(?s).*z", ".*z", "\\Aab", "(?m)^b"})
    EXPECT_EQ(made(pattern).search(text, 0, finds_), Outcome::kNone) << pattern;
  ASSERT_EQ(made("(?s).*z").search(text + "z", 0, finds_), Outcome::kFound);
  EXPECT_EQ(finds_.match().begin, 0U);
  EXPECT_LT(processor_seconds() - began, 20);
}

TEST_F(RegexTest, WhatDoesNotCompileSaysWhere) {
  const Status status = Regex::compile("ab(c", kLimits, {}).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("(character 5)"));
}

}  // namespace
}  // namespace neap
