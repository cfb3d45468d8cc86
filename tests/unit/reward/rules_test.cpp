#include "reward/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reward/reward_set.h"

namespace neap::reward {
namespace {

using spec::RewardFunctionConfig;
using spec::RewardKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RewardFunctionConfig config(RewardKind kind) {
  RewardFunctionConfig out;
  out.kind = kind;
  return out;
}

Score score(const RewardFunctionConfig& config, const char* row, std::string_view text,
            std::int64_t tokens = 0) {
  const Json json = Json::parse(row);
  const auto rule = *make_rule(config, {100});
  EXPECT_TRUE(rule->check(json).ok()) << rule->check(json).message();
  const Response response{&json, text, tokens, false};
  return (*rule->score({&response, 1})).front();
}

double value(RewardKind kind, const char* truth, std::string_view text) {
  return score(config(kind), Json({{"answer", truth}}).dump().c_str(), text).value;
}

TEST(ExactRule, ComparesEveryCharacter) {
  EXPECT_EQ(value(RewardKind::kExact, "yes", " yes\n"), 1);
  EXPECT_EQ(value(RewardKind::kExact, "yes", "Yes"), 0);
  EXPECT_EQ(value(RewardKind::kExact, "yes", "yes."), 0);
  RewardFunctionConfig loose = config(RewardKind::kExact);
  loose.ignore_case = true;
  loose.extract = {"answer_tag", "whole"};
  loose.correct_score = 2;
  loose.wrong_score = -1;
  EXPECT_EQ(score(loose, R"({"answer": "yes"})", "I say <answer>YES</answer>").value, 2);
  EXPECT_EQ(score(loose, R"({"answer": "yes"})", "yEs").value, 2);
  EXPECT_EQ(score(loose, R"({"answer": "yes"})", "no").value, -1);
}

TEST(NumericRule, ReadsWhatGsm8kAnswersLookLike) {
  const auto right = [](const char* truth, std::string_view text) {
    return value(RewardKind::kNumeric, truth, text) == 1;
  };
  EXPECT_TRUE(right("72", "so 48 + 24 = 72\n#### 72"));
  EXPECT_TRUE(right("Some steps.\n#### 1,072", "#### 1072"));
  EXPECT_TRUE(right("72", "#### 72."));
  EXPECT_TRUE(right("72", "#### $72.00 in all"));
  EXPECT_TRUE(right("72", "####72"));
  EXPECT_TRUE(right("72", "It is \\boxed{72}."));
  EXPECT_TRUE(right("72", "<answer>72</answer>"));
  EXPECT_TRUE(right("72", "The answer is 12 * 6 = 72 apples."));
  EXPECT_TRUE(right("72", "First 5, then 72"));
  EXPECT_TRUE(right("-5", "#### -5 apples"));
  EXPECT_TRUE(right("0.5", "\\boxed{\\frac{1}{2}}"));
  EXPECT_FALSE(right("1", "\\boxed{\\frac{1}{2}}"));
  EXPECT_FALSE(right("1", "\\boxed{\\frac{1}{x}}"));
  EXPECT_TRUE(right("0.5", "#### 1/2"));
  EXPECT_TRUE(right("1200", "#### 1.2e3"));
  EXPECT_FALSE(right("72", "72 is wrong\n#### 71"));
  for (const char* other : {"72x", "not 72", "72 or 73", "71 or 72", "72!", "72^2", "72, 73",
                            "71 = 72", "72 is wrong", "maybe 72", "between 72 and 73"}) {
    EXPECT_FALSE(right("72", std::string("#### ") + other)) << other;
    EXPECT_FALSE(right("72", std::string("\\boxed{") + other + "}")) << other;
    EXPECT_FALSE(right("72", std::string("The answer is ") + other)) << other;
  }
  EXPECT_FALSE(right("72", "It is not 72"));
  EXPECT_FALSE(right("72", "\\boxed{72")) << "cut short";
  EXPECT_FALSE(right("72", "71 + 1 = 72 \\boxed{}"));
  EXPECT_FALSE(right("72", "So 72x"));
  EXPECT_FALSE(right("72", "71 or 72"));
  EXPECT_FALSE(right("5 km", "\\boxed{5\\text{ m}}"));
  EXPECT_TRUE(right("72", "<think>\\boxed{5}</think> It is 72"));
  EXPECT_FALSE(right("5", "<think>\\boxed{5}</think> It is 72"));
  EXPECT_TRUE(right("\\frac{24-12\\sqrt{3}-\\pi}{8\\pi}", "#### 3/\\pi-3\\sqrt{3}/(2\\pi)-1/8"));
  EXPECT_TRUE(right("2^{64}", "#### 18446744073709551616"));
  EXPECT_FALSE(right("2^{64}", "#### 18446744073709551615"));
  EXPECT_FALSE(right("e^{\\pi\\sqrt{163}}", "#### 262537412640768744"));
  EXPECT_FALSE(right("72", "no number"));
  EXPECT_FALSE(right("72", ""));
  EXPECT_FALSE(right("72", "#### 72.5"));
  EXPECT_FALSE(right("72", "\\boxed{72} or rather \\boxed{71}"));
}

TEST(NumericRule, SaysWhetherThereWasAnAnswer) {
  EXPECT_THAT(score(config(RewardKind::kNumeric), R"({"answer": 7})", "#### 7").parts,
              ElementsAre(1, 1));
  EXPECT_THAT(score(config(RewardKind::kNumeric), R"({"answer": 7})", "#### 8").parts,
              ElementsAre(0, 1));
  EXPECT_THAT(score(config(RewardKind::kNumeric), R"({"answer": 7})", "?").parts,
              ElementsAre(0, 0));
}

TEST(NumericRule, RefusesATruthThatIsNoNumber) {
  const auto rule = *make_rule(config(RewardKind::kNumeric), {100});
  for (const char* truth : {"3s^2", "x+1", "(1,2)", "1, 2", "x<3", "\\text{June 20}", "204_5"})
    EXPECT_THAT(rule->check({{"answer", truth}}).message(), HasSubstr("symbolic")) << truth;
  const std::string letters = std::string(79, 'x') + "\u03c0\u03c0";  // byte 80 is in a character
  EXPECT_THAT(rule->check({{"answer", letters}}).message(), HasSubstr("\u03c0"));
  for (const char* truth :
       {"3", "-2.50", "\\frac{1}{2}", "5\\text{ cm}", "$1,200", "\\sqrt{2}", "x=4"})
    EXPECT_TRUE(rule->check({{"answer", truth}}).ok()) << truth;
}

TEST(NumericRule, TakesATolerance) {
  RewardFunctionConfig loose = config(RewardKind::kNumeric);
  loose.tolerance = 0.01;
  EXPECT_EQ(score(loose, R"({"answer": 3.14159})", "3.15").value, 1);
  EXPECT_EQ(score(loose, R"({"answer": 3.14159})", "3.2").value, 0);
}

TEST(AnswerRules, FindTheGroundTruth) {
  RewardFunctionConfig numeric = config(RewardKind::kNumeric);
  EXPECT_EQ(
      score(numeric, R"({"reward_model": {"style": "rule", "ground_truth": "4"}})", "4").value, 1);
  EXPECT_EQ(score(numeric, R"({"ground_truth": 4})", "4").value, 1);
  EXPECT_EQ(score(numeric, R"({"solution": "so \\boxed{4}"})", "4").value, 1);
  EXPECT_EQ(score(numeric, R"({"answer": ["5", 4]})", "4").value, 1);
  numeric.ground_truth = "extra_info.result";
  EXPECT_EQ(score(numeric, R"({"answer": "1", "extra_info": {"result": 4}})", "4").value, 1);

  const auto problem = [&](const char* row) {
    return (*make_rule(numeric, {}))->check(Json::parse(row)).message();
  };
  EXPECT_THAT(problem(R"({"extra_info": 1})"), HasSubstr("\"extra_info.result\" is missing"));
  numeric.ground_truth = "";
  EXPECT_THAT(problem(R"({"prompt": "x"})"), HasSubstr("reward_model.ground_truth, ground_truth"));
  EXPECT_THAT(problem(R"({"answer": " "})"), HasSubstr("\"answer\" is empty"));
  EXPECT_THAT(problem(R"({"answer": []})"), HasSubstr("field \"answer\" is an empty list"));
  EXPECT_THAT(problem(R"({"answer": ["4", null]})"),
              HasSubstr("element 2 of field \"answer\" is null"));
  EXPECT_THAT(problem(R"({"answer": null})"), testing::StartsWith("field \"answer\" is null"));
  EXPECT_THAT(problem(R"({"answer": {"a": 1}})"), HasSubstr("is object"));
  EXPECT_THAT(problem(R"({"answer": "blue"})"),
              HasSubstr("\"blue\" is not a number; set kind = \"symbolic\""));
  EXPECT_TRUE((*make_rule(config(RewardKind::kSymbolic), {}))
                  ->check(Json::parse(R"({"answer":"blue"})"))
                  .ok());
}

TEST(SymbolicRule, ReadsBehindTheThought) {
  EXPECT_EQ(value(RewardKind::kSymbolic, "7", "<think>\\boxed{7}</think> Answer: 8"), 0);
  EXPECT_EQ(value(RewardKind::kSymbolic, "8", "<think>\\boxed{7}</think> Answer: 8"), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "7", "<think>\\boxed{7}"), 0);
  EXPECT_EQ(value(RewardKind::kSymbolic, "7", "\\boxed{7}</think> nothing"), 0);
}

TEST(SymbolicRule, TakesBoxesThatAreJoinedAsOneAnswer) {
  EXPECT_EQ(value(RewardKind::kSymbolic, "1,-2", "$x=\\boxed{1}$ and $x=\\boxed{-2}$."), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "-2", "$x=\\boxed{1}$ or $x=\\boxed{-2}$."), 0);
  EXPECT_EQ(
      value(RewardKind::kSymbolic, "1,2", "$\\boxed{1} \\quad \\text{and} \\quad \\boxed{2}$"), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "2", "first \\boxed{1}, and then we get \\boxed{2}"), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "27", "Answer:\n27"), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "27", "The final answer is:\n\n\\[ 27 \\]"), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "C", "The correct option is C."), 1);
}

TEST(SymbolicRule, LooksForTheBoxFirst) {
  EXPECT_EQ(value(RewardKind::kSymbolic, "\\frac{1}{2}", "So 3 \\boxed{0.5} #### 7"), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "we get $\\boxed{x=2}$", "Answer: 2"), 1);
  EXPECT_EQ(value(RewardKind::kSymbolic, "2", "2"), 0) << "no place for an answer";
}

// Rows and a pattern are shared by the threads that score.
TEST(Rules, ScoreTheSameOnSeveralThreads) {
  constexpr int kRows = 32, kOfEach = 32, kResponses = kRows * kOfEach;
  std::vector<Json> rows;
  rows.reserve(kRows);
  std::vector<std::string> texts;
  texts.reserve(kResponses);
  for (int i = 0; i < kRows; ++i) rows.push_back({{"answer", i}});
  for (int i = 0; i < kResponses; ++i)
    texts.push_back("Step " + std::to_string(i) + ": \\boxed{" + std::to_string(i % 37) + "}");
  std::vector<Response> responses;
  responses.reserve(kResponses);
  for (int i = 0; i < kResponses; ++i)
    responses.push_back({&rows[static_cast<std::size_t>(i / kOfEach)],
                         texts[static_cast<std::size_t>(i)], 1, false});
  for (const RewardKind kind : {RewardKind::kNumeric, RewardKind::kSymbolic, RewardKind::kExact,
                                RewardKind::kRegex, RewardKind::kFormat}) {
    RewardFunctionConfig each = config(kind);
    if (kind == RewardKind::kExact) each.extract = {"pattern"};
    if (kind == RewardKind::kExact || kind == RewardKind::kRegex)
      each.pattern = "boxed.([0-9]*[02468])\\}";
    const auto scores = [&](std::size_t threads) {
      Setting setting{100};
      setting.threads = threads;
      std::vector<double> out;
      out.reserve(kResponses);
      const auto rule = *make_rule(each, setting);
      const std::vector<Score> scored = *rule->score(responses);
      for (const Score& score : scored) out.push_back(score.value);
      return out;
    };
    const std::vector<double> alone = scores(1);
    EXPECT_EQ(alone, scores(4)) << spec::to_string(kind);
    EXPECT_EQ(std::count(alone.begin(), alone.end(), 1) > 0, kind != RewardKind::kFormat);
  }
}

TEST(RegexRule, FindsThePatternAnywhere) {
  RewardFunctionConfig regex = config(RewardKind::kRegex);
  regex.pattern = "(?i)^thanks";
  regex.correct_score = 0.25;
  EXPECT_EQ(score(regex, "{}", "THANKS a lot").value, 0.25);
  EXPECT_EQ(score(regex, "{}", "no thanks").value, 0);
  regex.pattern = "(";
  EXPECT_THAT(make_rule(regex, {}).status().message(), HasSubstr("does not compile"));
}

TEST(FormatRule, WantsEveryTagOnce) {
  const auto right = [](const char* style, std::string_view text) {
    RewardFunctionConfig format = config(RewardKind::kFormat);
    format.style = style;
    return score(format, "{}", text).value == 1;
  };
  EXPECT_TRUE(right("think_answer", "<think>a</think><answer>b</answer>"));
  EXPECT_TRUE(right("think_answer", "\n<think>a\nb</think>\n\n<answer>b</answer>\n"));
  EXPECT_FALSE(right("think_answer", "<think>a</think>b"));
  EXPECT_FALSE(right("think_answer", "<think>a</think><answer>b</answer> more"));
  EXPECT_FALSE(right("think_answer", "so <think>a</think><answer>b</answer>"));
  EXPECT_FALSE(right("think_answer", "<think><think>a</think><answer>b</answer>"));
  EXPECT_FALSE(right("think_answer", "<think>a</think><answer>b</answer><answer>c</answer>"));
  EXPECT_FALSE(right("think_answer", "<answer>b</answer><think>a</think>"));
  EXPECT_FALSE(right("think_answer", ""));
  EXPECT_TRUE(right("think", "<think>a</think> then anything"));
  EXPECT_FALSE(right("think", "<think>a"));
  EXPECT_FALSE(right("think", "<think>a</think></think>"));
}

// Values by hand from the formulas of the three systems: L 100, b 20, f 2.
TEST(LengthRule, IsEachSystemsFormula) {
  const auto at = [](const char* formula, std::int64_t tokens, double factor = 2) {
    RewardFunctionConfig length = config(RewardKind::kLength);
    length.formula = formula;
    length.buffer_length = 20;
    length.penalty_factor = factor;
    return score(length, "{}", "", tokens).value;
  };
  EXPECT_EQ(at("verl", 80), 0);
  EXPECT_EQ(at("verl", 90), -1);
  EXPECT_EQ(at("verl", 100), -2);
  EXPECT_EQ(at("verl", 110), -3) << "no floor";
  EXPECT_EQ(at("trl", 80, 1), 0);
  EXPECT_EQ(at("trl", 90, 1), -0.5);
  EXPECT_EQ(at("trl", 110, 1), -1);
  EXPECT_EQ(at("openrlhf", 90), -1);
  EXPECT_EQ(at("openrlhf", 110), -2);
  RewardFunctionConfig wrong = config(RewardKind::kLength);
  wrong.buffer_length = 101;
  EXPECT_THAT(make_rule(wrong, {100}).status().message(), HasSubstr("can be 1 to max_length 100"));
  wrong.max_length = 200;
  EXPECT_TRUE(make_rule(wrong, {100}).ok());
}

TEST(RewardSet, AddsUpScoresByWeight) {
  spec::RewardConfig all;
  all.functions = {config(RewardKind::kNumeric), config(RewardKind::kRegex),
                   config(RewardKind::kExact)};
  all.functions[0].weight = 2;
  all.functions[1].name = "polite";
  all.functions[1].pattern = "please";
  all.functions[1].weight = 0.5;
  all.functions[2].data_sources = {"words"};
  auto set = *RewardSet::make(all, {});
  std::vector<std::string> names;
  for (const auto& column : set.columns()) names.push_back(column.name);
  EXPECT_THAT(names, ElementsAre("numeric", "numeric/acc", "numeric/answered", "polite", "exact",
                                 "exact/acc", "exact/answered"));
  const Json number = Json::parse(R"({"answer": 3})");
  const Json word = Json::parse(R"({"answer": "3", "data_source": "words"})");
  const Response responses[] = {
      {&number, "3", 1, false}, {&word, "please 3", 1, false}, {&word, "3", 1, false}};
  const auto scores = *set.score(responses);
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0][0], 1);
  EXPECT_TRUE(std::isnan(scores[0][4])) << "not of this function's data source";
  EXPECT_EQ(scores[1][4], 0);
  EXPECT_EQ(set.total(scores[0]), 2);
  EXPECT_EQ(set.total(scores[1]), 2.5);
  EXPECT_EQ(set.total(scores[2]), 3);
}

TEST(Rules, APatternOverItsLimitIsAFailureOrTheDefault) {
  const Json row = {{"answer", "1"}};
  const std::string slow = std::string(5000, 'a').append("b");
  const Response responses[] = {{&row, "a", 1, false, "a.jsonl:1"},
                                {&row, slow, 1, false, "a.jsonl:2"}};
  RewardFunctionConfig regex = config(RewardKind::kRegex);
  RewardFunctionConfig exact = config(RewardKind::kExact);
  exact.extract = {"pattern"};
  for (RewardFunctionConfig* each : {&regex, &exact}) {
    each->pattern = "^(a|aa)+$";
    const auto failed = (*make_rule(*each, {100}))->score(responses);
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(failed.status().message(), HasSubstr("takes over the limit of 5000000 steps"));
    EXPECT_THAT(failed.status().message(), HasSubstr("the row is a.jsonl:2: {\"answer\":\"1\"}"));
    each->on_failure = "default";
    each->default_score = -3;
    const auto scores = *(*make_rule(*each, {100}))->score(responses);
    EXPECT_EQ(scores[0].value, each == &regex ? 1 : 0);
    EXPECT_EQ(scores[1].value, -3);
    for (const double part : scores[1].parts) EXPECT_TRUE(std::isnan(part));
  }
  EXPECT_EQ((*make_rule(exact, {100}))->answer(responses[1]), std::nullopt);
}

TEST(RewardSet, RefusesRowsThatNothingScores) {
  spec::RewardConfig all;
  all.functions = {config(RewardKind::kNumeric)};
  all.functions[0].data_sources = {"openai/gsm8k"};
  const auto set = *RewardSet::make(all, {});
  EXPECT_TRUE(set.check(Json::parse(R"({"data_source": "openai/gsm8k", "answer": 1})")).ok());
  EXPECT_THAT(set.check(Json::parse(R"({"data_source": "other", "answer": 1})")).message(),
              HasSubstr("no reward function scores rows of data_source \"other\""));
  EXPECT_THAT(set.check(Json::parse(R"({"data_source": "openai/gsm8k"})")).message(),
              HasSubstr("reward function \"numeric\""));
}

}  // namespace
}  // namespace neap::reward
