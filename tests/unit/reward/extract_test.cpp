#include "reward/extract.h"

#include <gtest/gtest.h>

#include <chrono>

namespace neap::reward {
namespace {

using spec::Extraction;

std::string found(std::string_view text, Extraction how, const Pattern* pattern = nullptr) {
  return std::string(extract(text, how, pattern).value_or("(none)"));
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
  const Pattern group = *Pattern::compile("x=(\\d+)");
  EXPECT_EQ(found("x=1 x=22 x=", Extraction::kPattern, &group), "22");
  const Pattern whole = *Pattern::compile("[A-D]");
  EXPECT_EQ(found("A or C", Extraction::kPattern, &whole), "C");
  const Pattern empty = *Pattern::compile("y*");
  EXPECT_EQ(found("abc", Extraction::kPattern, &empty), "");
  const Pattern unset = *Pattern::compile("(a)|b");
  EXPECT_EQ(found("a b", Extraction::kPattern, &unset), "a");
  EXPECT_EQ(found("none", Extraction::kPattern, nullptr), "(none)");
}

TEST(Pattern, CompilesOrSaysWhere) {
  const auto wrong = Pattern::compile("a(b");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("\"a(b\" does not compile: missing"), std::string::npos)
      << wrong.status().message();
}

TEST(Pattern, ReadsWhatIsNotUtf8) {
  const Pattern word = *Pattern::compile("^.*ok$");
  EXPECT_TRUE(word.found_in("\xc3\xa9 ok"));
  EXPECT_TRUE((*Pattern::compile("ok")).found_in("\xff\xfe ok \xc3"));
}

TEST(Pattern, EndsWhereMatchingWouldNot) {
  const Pattern slow = *Pattern::compile("^(a|aa)+$");
  const auto start = std::chrono::steady_clock::now();
  const std::string text = std::string(5000, 'a').append("b");
  EXPECT_FALSE(slow.found_in(text));
  EXPECT_FALSE(slow.last_match(text));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(slow.gave_up(), 2u);
  EXPECT_LT(took.count(), 20);
}

}  // namespace
}  // namespace neap::reward
