#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "base/status.h"
#include "generator_fixture.h"
#include "rollout/seen_tokens.h"
#include "unit/ops/passes.h"

namespace neap::rollout {
namespace {

using step::SamplingOptions;

at::Tensor sample(const at::Tensor& logits, const SamplingOptions& options,
                  const at::Tensor& uniforms) {
  ops::AtenOps ops(at::kCPU);
  return step::sample(ops, logits, options, {uniforms, {}, {}}).tokens;
}

std::vector<double> shares(const at::Tensor& row, const SamplingOptions& options, int draws) {
  std::vector<float> uniforms;
  uniforms.reserve(static_cast<std::size_t>(draws));
  for (int i = 0; i < draws; ++i) uniforms.push_back(uniform(5, static_cast<std::uint64_t>(i)));
  const at::Tensor tokens =
      sample(row.repeat({draws, 1}), options, at::tensor(uniforms, at::kFloat));
  std::vector<double> out;
  for (std::int64_t v = 0; v < row.size(0); ++v) {
    out.push_back(tokens.eq(v).sum().item<double>() / draws);
  }
  return out;
}

const at::Tensor kRow = at::tensor({0.5F, 0.05F, 0.3F, 0.15F}).log();

TEST(Sampler, DrawsByProbability) {
  const auto got = shares(kRow, {}, 20000);
  EXPECT_NEAR(got[0], 0.5, 0.02);
  EXPECT_NEAR(got[1], 0.05, 0.01);
  EXPECT_NEAR(got[2], 0.3, 0.02);
}

TEST(Sampler, TemperatureSharpens) {
  const auto got = shares(kRow, {.temperature = 0.5}, 20000);
  const double total = 0.25 + 0.0025 + 0.09 + 0.0225;
  EXPECT_NEAR(got[0], 0.25 / total, 0.02);
  EXPECT_NEAR(got[2], 0.09 / total, 0.02);
  EXPECT_EQ(shares(kRow, {.temperature = 0}, 10)[0], 1);
}

TEST(Sampler, TopPAndTopKKeepTheLikeliest) {
  auto got = shares(kRow, {.top_p = 0.6}, 20000);  // 0.5, then 0.3 crosses 0.6
  EXPECT_NEAR(got[0], 0.625, 0.02);
  EXPECT_NEAR(got[2], 0.375, 0.02);
  EXPECT_EQ(got[1] + got[3], 0);
  got = shares(kRow, {.top_k = 3}, 20000);
  EXPECT_EQ(got[1], 0);
  EXPECT_NEAR(got[3], 0.15 / 0.95, 0.02);
  got = shares(kRow, {.top_p = 0.6, .top_k = 3}, 20000);  // 0.526, 0.316 of the three
  EXPECT_NEAR(got[0], 0.625, 0.02);
  EXPECT_EQ(got[3], 0);
  EXPECT_EQ(shares(kRow, {.top_p = 0}, 10)[0], 1);
}

TEST(Sampler, NeverDrawsATokenWithoutMass) {
  at::Tensor row = at::full({1000}, -std::numeric_limits<float>::infinity());
  row[3] = 0;
  row[500] = 1;
  const auto uniforms = at::tensor({0.0F, 0x1.fffffcp-1F});
  EXPECT_TRUE(sample(row.repeat({2, 1}), {}, uniforms).equal(at::tensor({3, 500}, at::kLong)));
}

TEST(Sampler, MinPDropsTheUnlikely) {
  // 0.15 and 0.05 are under 0.4 of 0.5.
  const auto got = shares(kRow, {.min_p = 0.4}, 20000);
  EXPECT_EQ(got[1] + got[3], 0);
  EXPECT_NEAR(got[0], 0.625, 0.02);
  EXPECT_NEAR(shares(kRow, {.top_p = 0.6, .min_p = 0.4}, 20000)[0], 1, 0.001);  // 0.625 is enough
  EXPECT_EQ(shares(kRow, {.min_p = 1}, 100)[0], 1);
}

TEST(Sampler, PenaltiesChangeLogitsOfSeenTokens) {
  SamplingOptions options;
  options.temperature = 0;
  options.log_probs = true;
  options.repetition_penalty = 2;
  options.presence_penalty = 0.25;
  options.frequency_penalty = 0.5;
  SeenTokens tokens({0, 2, 0});
  tokens.add_to_response(1);
  tokens.add_to_response(1);
  std::vector<std::int64_t> seen;
  std::vector<float> amounts;
  tokens.append_to(options, 6, seen, amounts);
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 2, 1, 0, 0, 0));
  EXPECT_THAT(amounts, ::testing::ElementsAre(0, 0, 1.25F, 0, 0, 0));
  ops::AtenOps ops(at::kCPU);
  const at::Tensor logits = at::tensor({3.0F, 2.5F, -1.0F, 1.0F}).view({1, 4});
  const auto got = step::sample(
      ops, logits.clone(), options,
      {at::zeros({1}), at::tensor(seen, at::kLong).view({1, 6}), at::tensor(amounts).view({1, 6})});
  // 3 / 2, 2.5 / 2 - 1.25, -1 * 2 and 1.
  const at::Tensor penalized = at::tensor({1.5F, 0.0F, -2.0F, 1.0F});
  EXPECT_EQ(got.tokens.item<std::int64_t>(), 0);
  EXPECT_NEAR(got.log_probs.item<float>(), penalized.log_softmax(0)[0].item<float>(), 1e-6);
}

TEST_F(Generator, TextDoesNotDependOnTheBatch) {
  expect_as_alone(prompts_, run(prompts_, 7));
  expect_as_alone(prompts_, run(prompts_, 3));  // slots are handed on as sequences end
}

TEST_F(Generator, TextDoesNotDependOnTheOrder) {
  const std::vector<Response> responses = run(prompts_, 3);
  const std::vector<Response> backward = run({prompts_.rbegin(), prompts_.rend()}, 3);
  for (std::size_t i = 0; i < prompts_.size(); ++i)
    EXPECT_EQ(backward[prompts_.size() - 1 - i].tokens, responses[i].tokens) << i;
}

TEST_F(Generator, SequencesOfAPromptShareItsPrefill) {
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::uint64_t k = 0; k < 3; ++k)
      prompts.push_back({prompts_[i].tokens, random_key({4, i, k})});
  }
  prompts.push_back(prompts[1]);  // a prompt may come again, with the same stream, too
  for (const std::int64_t slots : {1, 2, 4, 7, 16}) {
    for (const std::int64_t at_once : {100, 1, 2}) {
      options_.prefill = {at_once, 5};
      expect_as_alone(prompts, run(prompts, slots));
    }
  }
}

TEST_F(Generator, SequencesMoveToLowerSlotsAsOthersEnd) {
  options_.eos_token_ids = {};
  const std::vector<Prompt> prompts(prompts_.begin(), prompts_.begin() + 4);
  const std::vector<Response> endless = run(prompts, 4);
  // What ends the first three soon, but not the last.
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& last = endless[3].tokens;
    const auto ends = std::find_if(
        endless[i].tokens.begin(), endless[i].tokens.end(),
        [&](std::int64_t t) { return std::find(last.begin(), last.end(), t) == last.end(); });
    ASSERT_LT(ends - endless[i].tokens.begin(), 6);
    options_.eos_token_ids.push_back(*ends);
  }
  const std::vector<Response> responses = run(prompts, 4);
  // The last sequence's last key is in the first slot.
  const std::int64_t place = std::ssize(prompts[3].tokens) + std::ssize(endless[3].tokens) - 2;
  const at::Tensor keys = cache_.keys[0].select(2, place).abs().sum({1, 2});
  EXPECT_GT(keys[0].item<float>(), 0);
  EXPECT_EQ(keys[3].item<float>(), 0);
  expect_as_alone(prompts, responses);
}

TEST_F(Generator, FollowsTheFullForwardPass) {
  options_.sampling.temperature = 0;
  const auto responses = run(prompts_, 3);
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    std::vector<std::int64_t> text = prompts_[i].tokens;
    for (const std::int64_t token : responses[i].tokens) {
      const at::Tensor hidden = forward(model_, at::tensor(text, at::kLong).unsqueeze(0));
      const at::Tensor logits = ops::logits(model_, hidden.narrow(0, hidden.size(0) - 1, 1));
      // Decoding adds in another order: the token is the best, or as good as.
      EXPECT_NEAR(logits[0][token].item<double>(), logits.max().item<double>(), 1e-4);
      text.push_back(token);
    }
  }
}

TEST_F(Generator, EndsAtEosAndAtTheLimit) {
  options_.eos_token_ids = {};
  const auto endless = run(prompts_, 4);
  for (const auto& response : endless) {
    EXPECT_EQ(response.tokens.size(), 11U);
    EXPECT_FALSE(response.ended);
  }
  // Each token of the list ends a text.
  options_.eos_token_ids = {endless[2].tokens[4], endless[3].tokens[2]};
  const auto ended = run(prompts_, 4);
  for (const auto& [text, longest] : {std::pair{2, 5U}, std::pair{3, 3U}}) {
    const Response& response = ended[static_cast<std::size_t>(text)];
    EXPECT_LE(response.tokens.size(), longest);
    EXPECT_THAT(options_.eos_token_ids, ::testing::Contains(response.tokens.back()));
    EXPECT_TRUE(response.ended);
  }
}

// Rows that have ended are computed until the next read, so other products have other sizes, and other last bits.
TEST_F(Generator, TokensReadTogetherAreThoseReadOneByOne) {
  options_.sampling.log_probs = true;
  std::size_t early = 0;
  for (const bool ends : {true, false}) {
    options_.eos_token_ids =
        ends ? std::vector<std::int64_t>{0, 5, 9, 14, 21, 33, 40} : std::vector<std::int64_t>{};
    for (const std::int64_t slots : {7, 3, 1}) {
      options_.decode_steps = 1;
      const std::vector<Response> one = run(prompts_, slots);
      for (const std::int64_t steps : {2, 3, 4, 20}) {
        SCOPED_TRACE(::testing::Message() << slots << " rows, " << steps << " steps");
        options_.decode_steps = steps;
        std::size_t reads = 0;
        options_.on_action = [&](const step::GenerationAction& action) {
          const auto* decodes = std::get_if<step::DecodeStep>(&action);
          if (decodes != nullptr && decodes->steps > 1) ++reads;
        };
        const std::vector<Response> several = run(prompts_, slots);
        EXPECT_GT(reads, 0U);
        for (std::size_t i = 0; i < one.size(); ++i) {
          EXPECT_EQ(several[i].tokens, one[i].tokens) << i;
          EXPECT_EQ(several[i].ended, one[i].ended) << i;
          if (one[i].ended && one[i].tokens.size() > 1) ++early;
          if (!ends) {
            EXPECT_EQ(several[i].log_probs, one[i].log_probs) << i;
          }
          EXPECT_THAT(several[i].log_probs,
                      ::testing::Pointwise(::testing::FloatNear(1e-6F), one[i].log_probs));
        }
      }
    }
  }
  EXPECT_GT(early, 10U);
}

TEST_F(Generator, PenaltiesReachEverySequence) {
  options_.eos_token_ids = {};
  options_.sampling.temperature = 0;
  options_.sampling.presence_penalty = 100;  // no token comes twice
  const auto responses = run(prompts_, 3);
  for (const Response& response : responses) {
    const std::set<std::int64_t> different(response.tokens.begin(), response.tokens.end());
    EXPECT_EQ(different.size(), 11U);
  }
  expect_as_alone(prompts_, responses);
  options_.sampling.presence_penalty = 0;
  options_.sampling.repetition_penalty = 1e6;  // prompts count, too
  const auto other = run(prompts_, 7);
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    for (const std::int64_t token : prompts_[i].tokens)
      EXPECT_THAT(other[i].tokens, ::testing::Not(::testing::Contains(token))) << i;
  }
}

TEST_F(Generator, AStopEndsAResponse) {
  options_.eos_token_ids = {};
  const auto endless = run(prompts_, 4);
  std::vector<std::size_t> taken(prompts_.size());
  options_.stops = [&](std::size_t response, std::int64_t token) {
    EXPECT_EQ(token, endless[response].tokens[taken[response]]);
    return ++taken[response] == 2 + response;
  };
  const auto stopped = run(prompts_, 4);
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    EXPECT_EQ(stopped[i].tokens.size(), 2 + i);
    EXPECT_TRUE(stopped[i].ended);
  }
}

TEST_F(Generator, StopsWhereItIsTold) {
  options_.eos_token_ids = {};
  const auto all = run(prompts_, 1);
  std::size_t told = 0;
  options_.on_progress = [&](std::size_t ended) { return (told = ended) < 2; };
  // No sequence is decoded when the second has ended, and others wait.
  const auto some = run(prompts_, 1);
  EXPECT_EQ(told, 2U);
  for (std::size_t i = 0; i < prompts_.size(); ++i)
    EXPECT_EQ(some[i].tokens, i < 2 ? all[i].tokens : std::vector<std::int64_t>()) << i;
}

TEST_F(Generator, RefusesPromptsThatDoNotFit) {
  EXPECT_THROW((void)run({{{}, 1}}, 1), Error);
  EXPECT_THROW((void)run({{{1, 2, 3, 4, 5, 6}, 1}}, 1), Error);
  options_.max_new_tokens = 12;
  EXPECT_THROW((void)run(prompts_, 1), Error);
}

}  // namespace
}  // namespace neap::rollout
