#include "rlhf/core_algos.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"

namespace neap::rlhf {
namespace {

// Numbers from make_goldens.py, in double so that only the formulas are compared.
class CoreAlgos : public ::testing::Test {
 protected:
  static const Json& golden() {
    static const Json json = [] {
      const std::string path = NEAP_SOURCE_DIR "/tests/unit/rlhf/core_algos_golden.json";
      return value_or_throw(parse_json(value_or_throw(read_file(path)), path));
    }();
    return json;
  }
  static at::Tensor table(const Json& rows) {
    std::vector<double> flat;
    for (const Json& row : rows) {
      for (const Json& x : row) flat.push_back(x.get<double>());
    }
    return at::tensor(flat, at::kDouble).view({static_cast<std::int64_t>(rows.size()), -1});
  }
  static at::Tensor input(const char* name) { return table(golden()["inputs"][name]); }
  static void expect_close(const at::Tensor& got, const at::Tensor& want, double tolerance = 1e-6) {
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_LT((got - want).abs().max().item<double>(), tolerance) << got << want;
  }
  static std::vector<std::int64_t> group() {
    return golden()["inputs"]["group"].get<std::vector<std::int64_t>>();
  }
  const at::Tensor mask_ = input("mask");
};

TEST_F(CoreAlgos, MaskedMeanAndWhitening) {
  EXPECT_NEAR(masked_mean(input("rewards"), mask_).item<double>(),
              golden()["masked_mean"].get<double>(), 1e-8);
  expect_close(masked_whiten(input("rewards"), mask_), table(golden()["whiten"]));
  EXPECT_THROW((void)masked_whiten(at::ones({1, 2}), at::tensor({1.0F, 0.0F}).view({1, 2})), Error);
}

TEST_F(CoreAlgos, KlEstimators) {
  for (const auto& [name, want] : golden()["kl"].items()) {
    SCOPED_TRACE(name);
    expect_close(kl_penalty(input("old"), input("ref"), name), table(want));
  }
  expect_close(kl_penalty(input("old"), input("ref"), "k3"), table(golden()["kl"]["low_var_kl"]));
  EXPECT_THROW((void)kl_penalty(mask_, mask_, "k4"), Error);
}

TEST_F(CoreAlgos, PlusKeepsTheValueAndTakesTheGradientOfK2) {
  at::Tensor p = input("new").requires_grad_();
  const at::Tensor kl = kl_penalty(p, input("old"), "low_var_kl+");
  expect_close(kl.detach(), kl_penalty(input("new"), input("old"), "low_var_kl"));
  expect_close(torch::autograd::grad({kl.sum()}, {p})[0], input("new") - input("old"));
}

TEST_F(CoreAlgos, KlInRewardAndController) {
  const Json& want = golden()["reward_kl"];
  const ShapedReward got = apply_kl_penalty(input("rewards"), input("old"), input("ref"), mask_,
                                            want["beta"].get<double>(), "kl");
  expect_close(got.token_rewards, table(want["rewards"]));
  EXPECT_NEAR(got.kl, want["kl"].get<double>(), 1e-6);
  spec::AlgorithmConfig config;
  config.kl_coef = want["beta"].get<double>();
  KlController fixed(config);
  fixed.update(got.kl, 6);
  EXPECT_EQ(fixed.value(), config.kl_coef);
  config.kl_ctrl_type = "adaptive";
  KlController adaptive(config);
  adaptive.update(got.kl, 6);
  EXPECT_NEAR(adaptive.value(), want["adapted"].get<double>(), 1e-15);
}

TEST_F(CoreAlgos, GaeWithAndWithoutHoles) {
  for (const Json& want : golden()["gae"]) {
    const at::Tensor mask = input(want["mask"].get<std::string>().c_str());
    const Advantages got = gae_advantages(input("rewards"), input("values"), mask,
                                          want["gamma"].get<double>(), want["lam"].get<double>());
    expect_close(got.advantages * mask, table(want["whitened"]));
    expect_close((got.returns - input("values")) * mask, table(want["raw"]));
  }
}

TEST_F(CoreAlgos, GroupAdvantages) {
  expect_close(grpo_advantages(input("rewards"), mask_, group(), true).advantages,
               table(golden()["grpo"]));
  expect_close(grpo_advantages(input("rewards"), mask_, group(), false).advantages,
               table(golden()["dr_grpo"]));
  expect_close(rloo_advantages(input("rewards"), mask_, group()).advantages,
               table(golden()["rloo"]));
  EXPECT_THROW((void)rloo_advantages(input("rewards"), mask_, {1, 2}), Error);
  for (const Json& want : golden()["reinforce_plus_plus"]) {
    const Advantages got =
        reinforce_plus_plus_advantages(input("rewards"), mask_, want["gamma"].get<double>());
    expect_close(got.advantages, table(want["whitened"]));
    expect_close(got.returns * mask_, table(want["raw"]));
  }
}

TEST_F(CoreAlgos, PolicyLoss) {
  const Json& want = golden()["policy"];
  spec::ActorConfig config;
  config.clip_ratio_low = want["low"].get<double>();
  config.clip_ratio_high = want["high"].get<double>();
  config.clip_ratio_c = want["c"].get<double>();
  for (const auto& [mode, loss] : want["loss"].items()) {
    SCOPED_TRACE(mode);
    config.loss_agg_mode = mode;
    const PolicyLoss got = policy_loss(input("old"), input("new"), input("advantages"), mask_,
                                       config, LossScale::of(mask_));
    EXPECT_NEAR(got.loss.item<double>(), loss.get<double>(), 1e-6);
    EXPECT_NEAR(got.clip_fraction.item<double>(), want["clip_fraction"].get<double>(), 1e-6);
    EXPECT_NEAR(got.clip_fraction_lower.item<double>(), want["clip_fraction_lower"].get<double>(),
                1e-6);
    EXPECT_NEAR(got.ppo_kl.item<double>(), want["ppo_kl"].get<double>(), 1e-6);
  }
  config.loss_agg_mode = "sum";
  EXPECT_THROW((void)policy_loss(input("old"), input("new"), input("advantages"), mask_, config,
                                 LossScale::of(mask_)),
               Error);
}

TEST_F(CoreAlgos, MicroBatchLossesAddUpToTheMiniBatch) {
  const LossScale scale = LossScale::of(mask_);
  for (const auto& [mode, loss] : golden()["policy"]["loss"].items()) {
    const at::Tensor x = input("advantages");
    const at::Tensor whole = aggregate_loss(x, mask_, mode, scale);
    const at::Tensor parts = aggregate_loss(x.narrow(0, 0, 2), mask_.narrow(0, 0, 2), mode, scale) +
                             aggregate_loss(x.narrow(0, 2, 4), mask_.narrow(0, 2, 4), mode, scale);
    EXPECT_NEAR(whole.item<double>(), parts.item<double>(), 1e-12) << mode;
  }
}

TEST_F(CoreAlgos, ValueLoss) {
  const Json& want = golden()["value"];
  for (const auto& [mode, loss] : want["loss"].items()) {
    SCOPED_TRACE(mode);
    const ValueLoss got = value_loss(input("new_values"), input("returns"), input("values"), mask_,
                                     want["cliprange"].get<double>(), mode, LossScale::of(mask_));
    EXPECT_NEAR(got.loss.item<double>(), loss.get<double>(), 1e-6);
    EXPECT_NEAR(got.clip_fraction.item<double>(), want["clip_fraction"].get<double>(), 1e-6);
  }
}

TEST_F(CoreAlgos, PairwiseLossAndEntropy) {
  const Json& pair = golden()["pairwise"];
  const at::Tensor chosen = at::tensor(pair["chosen"].get<std::vector<double>>(), at::kDouble);
  const at::Tensor rejected = at::tensor(pair["rejected"].get<std::vector<double>>(), at::kDouble);
  EXPECT_NEAR(pairwise_loss(chosen, rejected).item<double>(), pair["loss"].get<double>(), 1e-9);
  const at::Tensor want = at::tensor(golden()["entropy"].get<std::vector<double>>(), at::kDouble);
  EXPECT_LT((entropy_from_logits(input("logits")) - want).abs().max().item<double>(), 1e-9);
}

}  // namespace
}  // namespace neap::rlhf
