#include "reward/extract.h"

#include <gtest/gtest.h>

#include <string>

#include "base/budget.h"
#include "reward/pattern.h"

namespace neap::reward {
namespace {

using spec::Extraction;

std::string found(std::string_view text, Extraction how) {
  return std::string(extract(text, how).value_or("(none)"));
}
std::string last(const char* pattern, std::string_view text) {
  const auto match = Pattern::compile(pattern)->last_match(text);
  return match.ok() ? std::string(match->value_or("(none)")) : match.status().message();
}
bool finds(const char* pattern, std::string_view text) {
  const auto outcome = Pattern::compile(pattern)->found_in(text);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return outcome.ok() && *outcome;
}

TEST(Extract, WholeTextAndHashes) {
  EXPECT_EQ(found(" 42 \n", Extraction::kWhole), "42");
  EXPECT_EQ(found("#### 7 \nso #### 72 apples\nDone.", Extraction::kHashes), "72 apples");
  EXPECT_EQ(found("####72", Extraction::kHashes), "72");
  EXPECT_EQ(found("### 72", Extraction::kHashes), "(none)");
  EXPECT_EQ(found("####", Extraction::kHashes), "");
}

TEST(Extract, TheLastBox) {
  EXPECT_EQ(found("\\boxed{1} then \\boxed{\\frac{1}{2}}.", Extraction::kBoxed), "\\frac{1}{2}");
  EXPECT_EQ(found("\\fbox{3}", Extraction::kBoxed), "3");
  EXPECT_EQ(found("\\boxed{1} \\fbox{2}", Extraction::kBoxed), "2");
  EXPECT_EQ(found("$\\boxed 5$ apples", Extraction::kBoxed), "5");
  EXPECT_EQ(found("\\boxed {5}", Extraction::kBoxed), "5");
  EXPECT_EQ(found("\\boxed{\\{1, 2\\}}", Extraction::kBoxed), "\\{1, 2\\}");
  EXPECT_EQ(found("\\boxed{1} and \\boxed{2", Extraction::kBoxed), "(none)") << "cut short";
  EXPECT_EQ(found("\\boxedfoo{1}", Extraction::kBoxed), "(none)");
  EXPECT_EQ(found("\\boxed", Extraction::kBoxed), "(none)");
  EXPECT_EQ(found("\\boxed{\\", Extraction::kBoxed), "(none)");
}

TEST(Extract, TheLastAnswerTag) {
  EXPECT_EQ(found("<answer>1</answer><answer> 2 </answer>", Extraction::kAnswerTag), "2");
  EXPECT_EQ(found("<answer>1", Extraction::kAnswerTag), "(none)");
  EXPECT_EQ(found("</answer><answer>", Extraction::kAnswerTag), "(none)");
}

TEST(Extract, TheLineOfTheAnswer) {
  EXPECT_EQ(found("The answer is 5.\nReally.", Extraction::kAnswerLine), "5");
  EXPECT_EQ(found("Final Answer: The final answer is $12$. I hope it is correct.",
                  Extraction::kAnswerLine),
            "$12$");
  EXPECT_EQ(found("**Answer:** 7", Extraction::kAnswerLine), "7");
  EXPECT_EQ(found("ANSWER : (a, b)", Extraction::kAnswerLine), "(a, b)");
  EXPECT_EQ(found("answer is: 3", Extraction::kAnswerLine), "3");
  EXPECT_EQ(found("Answer: 1\nAnswer: 2", Extraction::kAnswerLine), "2");
  EXPECT_EQ(found("answers vary", Extraction::kAnswerLine), "(none)");
  EXPECT_EQ(found("answer 5", Extraction::kAnswerLine), "(none)");
  EXPECT_EQ(found("answer:", Extraction::kAnswerLine), "(none)");
  EXPECT_EQ(found("answer is", Extraction::kAnswerLine), "(none)");
  EXPECT_EQ(found("", Extraction::kAnswerLine), "(none)");
}

TEST(Extract, TheLastMatchOfAPattern) {
  EXPECT_EQ(last("x=(\\d+)", "x=1 x=22 x="), "22");
  EXPECT_EQ(last("[A-D]", "A or C"), "C");
  EXPECT_EQ(last("y*", "abc"), "");
  EXPECT_EQ(last("y*", "a\u00e9b\xff"), "");
  EXPECT_EQ(last("(a)|b", "a b"), "a");
  EXPECT_EQ(last("z", "abc"), "(none)");
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += std::to_string(i) + " ";
  EXPECT_EQ(last("\\d+", many), "19999");
}

TEST(Pattern, CompilesOrSaysWhere) {
  const auto wrong = Pattern::compile("a(b");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("\"a(b\" does not compile: missing"), std::string::npos)
      << wrong.status().message();
  const auto long_one = Pattern::compile(std::string(5000, '('));
  ASSERT_FALSE(long_one.ok());
  EXPECT_LT(long_one.status().message().size(), 300U) << "an excerpt is enough";
}

TEST(Pattern, ReadsWhatIsNotUtf8) {
  EXPECT_TRUE(finds("^.*ok$", "\xc3\xa9 ok"));
  EXPECT_TRUE(finds("ok", "\xff\xfe ok \xc3"));
}

TEST(Pattern, FailsWhereMatchingWouldNotEnd) {
  const Pattern slow = *Pattern::compile("^(a|aa)+$");
  const double began = processor_seconds();
  const std::string text = std::string(5000, 'a').append("b");
  for (const Status& status : {slow.found_in(text).status(), slow.last_match(text).status()}) {
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.message().find("the pattern \"^(a|aa)+$\" takes over the limit of 5000000"),
              std::string::npos)
        << status.message();
  }
  EXPECT_LT(processor_seconds() - began, 20);
}

}  // namespace
}  // namespace neap::reward
