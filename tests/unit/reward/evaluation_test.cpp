#include "reward/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "reward/reward_set.h"

namespace neap::reward {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Numbers from make_evaluation_goldens.py.
const Json& golden() {
  static const Json kJson = [] {
    const std::string path = NEAP_SOURCE_DIR "/tests/unit/reward/evaluation_golden.json";
    return *parse_json(*read_file(path), path);
  }();
  return kJson;
}

TEST(PassAtK, IsTheShareOfSubsetsWithARightResponse) {
  for (const Json& c : golden()["pass_at_k"]) {
    EXPECT_NEAR(
        pass_at_k(c[0].get<std::int64_t>(), c[1].get<std::int64_t>(), c[2].get<std::int64_t>()),
        c[3].get<double>(), 1e-12)
        << c.dump();
  }
}

TEST(PassAtK, ManyResponsesDoNotOverflow) {
  // 1 - C(9990, 100) / C(10000, 100) by logarithms of factorials.
  const auto choose = [](double n, double k) {
    return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
  };
  EXPECT_NEAR(pass_at_k(10000, 10, 100), 1 - std::exp(choose(9990, 100) - choose(10000, 100)),
              1e-9);
  EXPECT_EQ(pass_at_k(10000, 0, 10000), 0);
  EXPECT_EQ(pass_at_k(10000, 1, 10000), 1);
}

TEST(PassCounts, AreThePowersOfTwoBelowNAndN) {
  EXPECT_THAT(pass_counts(1), ElementsAre(1));
  EXPECT_THAT(pass_counts(4), ElementsAre(1, 2, 4));
  EXPECT_THAT(pass_counts(6), ElementsAre(1, 2, 4, 6));
}

TEST(Figures, AreThoseOfThePlainFormulas) {
  std::vector<Outcome> outcomes;
  for (const Json& prompt : golden()["prompts"]) {
    for (const Json& r : prompt) {
      Outcome& o = outcomes.emplace_back();
      o.score = r["score"].get<double>();
      o.accuracy = r["acc"].get<double>();
      if (r["answer"].is_string()) o.answer = r["answer"].get<std::string>();
    }
  }
  const Figures figures = evaluation_figures(outcomes, 6);
  const Json& want = golden()["figures"];
  ASSERT_EQ(figures.size(), want.size());
  std::size_t i = 0;
  for (const auto& [name, value] : want.items()) {
    EXPECT_EQ(figures[i].first, name);
    EXPECT_NEAR(figures[i].second, value.get<double>(), 1e-12) << name;
    ++i;
  }
}

TEST(Figures, LackWhatTheRewardsDoNotTell) {
  const std::vector<Outcome> scores = {{2, {}, {}}, {4, {}, {}}};
  EXPECT_THAT(evaluation_figures(scores, 1), ElementsAre(Pair("reward/mean@1", 3)));
  EXPECT_THAT(evaluation_figures(scores, 2),
              ElementsAre(Pair("reward/mean@2", 3), Pair("reward/std@2", 1),
                          Pair("reward/best@2/mean", 4), Pair("reward/worst@2/mean", 2)));
  const std::vector<Outcome> some = {{1, 1, {}}, {1, {}, {}}};
  EXPECT_EQ(evaluation_figures(some, 1).size(), 1U);
  EXPECT_TRUE(evaluation_figures({}, 4).empty());
}

TEST(Majority, TheFirstOfSeveralAnswersWithAsManyVotesCounts) {
  const Outcome right{1, 1, "72"}, wrong{0, 0, "71"}, silent{0, 0, {}};
  EXPECT_EQ(majority_accuracy(std::vector<Outcome>{wrong, right, right}), 1);
  EXPECT_EQ(majority_accuracy(std::vector<Outcome>{wrong, right}), 0);
  EXPECT_EQ(majority_accuracy(std::vector<Outcome>{silent, silent, right}), 1);
  EXPECT_EQ(majority_accuracy(std::vector<Outcome>{silent}), 0);
}

TEST(SourceMetric, TellsWhatModelsAreComparedBy) {
  EXPECT_EQ(source_metric("gsm8k", "acc/maj@4/mean", true), "val-core/gsm8k/acc/maj@4/mean");
  EXPECT_EQ(source_metric("gsm8k", "acc/pass@2", true), "val-core/gsm8k/acc/pass@2");
  EXPECT_EQ(source_metric("gsm8k", "reward/mean@4", true), "val-aux/gsm8k/reward/mean@4");
  EXPECT_EQ(source_metric("gsm8k", "reward/mean@4", false), "val-core/gsm8k/reward/mean@4");
  EXPECT_EQ(source_metric("gsm8k", "reward/std@4", false), "val-aux/gsm8k/reward/std@4");
}

TEST(RewardSet, TellsAnAnswerInOneWayAndTheAccuracyOfTheFunctionThatHasOne) {
  spec::RewardConfig config;
  config.functions.emplace_back().kind = spec::RewardKind::kLength;
  config.functions.back().buffer_length = 1;
  spec::RewardFunctionConfig& numeric = config.functions.emplace_back();
  numeric.kind = spec::RewardKind::kNumeric;
  numeric.data_sources = {"numbers"};
  spec::RewardFunctionConfig& exact = config.functions.emplace_back();
  exact.kind = spec::RewardKind::kExact;
  exact.ignore_case = true;
  exact.data_sources = {"words"};
  RewardSet set = *RewardSet::make(config, {100, "prompt", {}});
  const Json numbers = Json::parse(R"({"data_source": "numbers", "answer": "1234.5"})");
  const Json words = Json::parse(R"({"data_source": "words", "answer": "Yes"})");
  const auto answer = [&](const Json& row, std::string_view text) {
    return set.answer({&row, text, 3, false});
  };
  EXPECT_EQ(answer(numbers, "It is $1,234.50."), "1234.5");
  EXPECT_EQ(answer(numbers, "The answer is \\frac12"), answer(numbers, "#### 0.5"));
  EXPECT_EQ(answer(numbers, "no idea"), std::nullopt);
  EXPECT_EQ(answer(words, " YES "), "yes");
  const std::vector<Response> responses = {{&numbers, "#### 1234.5", 3, false},
                                           {&words, "no", 3, false}};
  const auto scored = *set.score(responses);
  EXPECT_EQ(set.accuracy(scored[0]), 1);
  EXPECT_EQ(set.accuracy(scored[1]), 0);
}

}  // namespace
}  // namespace neap::reward
