#include "rlhf/experience/core_algos.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "ops/aten_ops.h"
#include "spec/types/loss_kinds.h"
#include "step/training/policy_losses.h"
#include "step/training/preference.h"

namespace neap::rlhf {
namespace {

// Of a number of a loss.
double item(const step::LossValue<at::Tensor>& value) {
  ops::AtenOps ops(at::kCPU);
  return step::read_values(ops, {value}).front();
}

// Numbers from make_goldens.py, in double so that only the formulas are compared.
class CoreAlgos : public ::testing::Test {
 protected:
  static const Json& golden() {
    static const Json kGoldens = [] {
      const std::string path = NEAP_SOURCE_DIR "/tests/unit/rlhf/core_algos_golden.json";
      return value_or_throw(parse_json(value_or_throw(read_file(path)), path));
    }();
    return kGoldens;
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
    expect_close(kl_penalty(input("old"), input("ref"), *spec::parse_kl(name)), table(want));
  }
}

TEST_F(CoreAlgos, PlusKeepsTheValueAndTakesTheGradientOfK2) {
  const spec::KlKind kind = value_or_throw(spec::parse_kl("low_var_kl+"));
  EXPECT_TRUE(kind.straight_through);
  EXPECT_EQ(kind.value, spec::KlEstimator::kK3);
  expect_close(kl_penalty(input("new"), input("old"), kind),
               kl_penalty(input("new"), input("old"), {spec::KlEstimator::kK3}));
}

TEST_F(CoreAlgos, KlInRewardAndController) {
  const Json& want = golden()["reward_kl"];
  const ShapedReward got = apply_kl_penalty(input("rewards"), input("old"), input("ref"), mask_,
                                            want["beta"].get<double>(), {});
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

TEST_F(CoreAlgos, AControllerGoesOnWhereItsStartIsTheSame) {
  spec::AlgorithmConfig config;
  config.kl_coef = 0.5;
  KlController fixed(config);
  fixed.restore(0.001, 0.001);
  EXPECT_EQ(fixed.value(), 0.5);
  config.kl_ctrl_type = "adaptive";
  KlController adaptive(config);
  adaptive.restore(0.4, 0.5);
  EXPECT_EQ(adaptive.value(), 0.4);
  KlController changed(config);
  changed.restore(0.002, 0.001);
  EXPECT_EQ(changed.value(), 0.5);
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
  expect_close(grpo_advantages(input("rewards"), mask_, group(), true, 1e-6).advantages,
               table(golden()["grpo"]));
  expect_close(grpo_advantages(input("rewards"), mask_, group(), false, 1e-6).advantages,
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

// Along d_x, the derivative of `loss` by finite differences.
template <class Loss>
void expect_gradient(const at::Tensor& x, const at::Tensor& d_x, const Loss& loss) {
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const auto at_step = [&](double by) {
      const at::Tensor moved = x.clone();
      moved.view(-1)[i] += by;
      return loss(moved);
    };
    const double numeric = (at_step(1e-6) - at_step(-1e-6)) / 2e-6;
    EXPECT_NEAR(d_x.flatten()[i].item<double>(), numeric, 1e-6 * (1 + std::abs(numeric))) << i;
  }
}

TEST_F(CoreAlgos, PolicyLoss) {
  const Json& want = golden()["policy"];
  spec::ActorConfig config;
  config.clip_ratio_low = want["low"].get<double>();
  config.clip_ratio_high = want["high"].get<double>();
  config.clip_ratio_c = want["c"].get<double>();
  ops::AtenOps ops(at::kCPU);
  for (const auto& [mode, loss] : want["loss"].items()) {
    SCOPED_TRACE(mode);
    const at::Tensor weights =
        step::loss_weights(ops, mask_, value_or_throw(spec::parse_loss_aggregation(mode)),
                           loss_scale(mask_, mask_.size(1)));
    const auto at_new = [&](const at::Tensor& log_probs) {
      return step::policy_loss(ops,
                               step::PolicyInputs<at::Tensor>{input("old"), log_probs,
                                                              input("advantages"), mask_, weights},
                               config);
    };
    const auto got = at_new(input("new"));
    EXPECT_NEAR(item(got.statistics.loss), loss.get<double>(), 1e-6);
    EXPECT_NEAR(item(got.statistics.clip_fraction), want["clip_fraction"].get<double>(), 1e-6);
    EXPECT_NEAR(item(got.statistics.clip_fraction_lower), want["clip_fraction_lower"].get<double>(),
                1e-6);
    EXPECT_NEAR(item(got.statistics.kl), want["ppo_kl"].get<double>(), 1e-6);
    expect_gradient(input("new"), got.d_log_probs,
                    [&](const at::Tensor& x) { return item(at_new(x).statistics.loss); });
  }
  EXPECT_FALSE(spec::parse_loss_aggregation("sum").ok());
}

TEST_F(CoreAlgos, MicroBatchLossesAddUpToTheMiniBatch) {
  ops::AtenOps ops(at::kCPU);
  const step::LossScale scale = loss_scale(mask_, mask_.size(1));
  for (const auto& [name, loss] : golden()["policy"]["loss"].items()) {
    const auto mode = value_or_throw(spec::parse_loss_aggregation(name));
    const at::Tensor whole = step::loss_weights(ops, mask_, mode, scale);
    const at::Tensor first = step::loss_weights(ops, mask_.narrow(0, 0, 2), mode, scale);
    const at::Tensor rest = step::loss_weights(ops, mask_.narrow(0, 2, 4), mode, scale);
    expect_close(at::cat({first, rest}), whole, 1e-12);
  }
}

TEST_F(CoreAlgos, ValueLoss) {
  const Json& want = golden()["value"];
  ops::AtenOps ops(at::kCPU);
  for (const auto& [mode, loss] : want["loss"].items()) {
    SCOPED_TRACE(mode);
    const at::Tensor weights =
        step::loss_weights(ops, mask_, value_or_throw(spec::parse_loss_aggregation(mode)),
                           loss_scale(mask_, mask_.size(1)));
    const auto at_values = [&](const at::Tensor& values) {
      return step::value_loss(ops, values, input("returns"), input("values"), step::LossMask(mask_),
                              weights, want["cliprange"].get<double>());
    };
    const auto got = at_values(input("new_values"));
    EXPECT_NEAR(item(got.loss), loss.get<double>(), 1e-6);
    EXPECT_NEAR(item(got.clip_fraction), want["clip_fraction"].get<double>(), 1e-6);
    expect_gradient(input("new_values"), got.d_values,
                    [&](const at::Tensor& x) { return item(at_values(x).loss); });
  }
}

TEST_F(CoreAlgos, KlSlopesAreDerivatives) {
  ops::AtenOps ops(at::kCPU);
  const at::Tensor delta = at::tensor({-25.0, -3.0, -0.2, 0.4, 2.5, 30.0}, at::kDouble);
  for (const char* name : {"k1", "abs", "k2", "k3"}) {
    SCOPED_TRACE(name);
    const spec::KlEstimator kind = value_or_throw(spec::parse_kl(name)).value;
    expect_gradient(delta, step::kl_slope(ops, delta, kind), [&](const at::Tensor& x) {
      return step::kl_value(ops, x, kind).sum().item<double>();
    });
  }
}

TEST_F(CoreAlgos, PairwiseLoss) {
  const Json& pair = golden()["pairwise"];
  const at::Tensor chosen = at::tensor(pair["chosen"].get<std::vector<double>>(), at::kDouble);
  const at::Tensor rejected = at::tensor(pair["rejected"].get<std::vector<double>>(), at::kDouble);
  const at::Tensor scores = at::stack({chosen, rejected});
  ops::AtenOps ops(at::kCPU);
  const auto pairs = static_cast<double>(chosen.numel());
  const at::Tensor none = at::zeros_like(chosen);
  const auto got = step::pairwise_loss(ops, scores, none, 0, pairs);
  EXPECT_NEAR(item(got.loss), pair["loss"].get<double>(), 1e-9);
  expect_gradient(scores, got.d_scores, [&](const at::Tensor& x) {
    return item(step::pairwise_loss(ops, x, none, 0, pairs).loss);
  });
}

}  // namespace
}  // namespace neap::rlhf
