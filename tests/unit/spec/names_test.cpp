// Words of the configuration and the values that they stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "spec/model/checkpointing.h"
#include "spec/types/dtype.h"
#include "spec/types/loss_kinds.h"

namespace neap::spec {
namespace {

TEST(Names, KlEstimatorsAreVerls) {
  const std::pair<std::string_view, KlEstimator> known[] = {
      {"kl", KlEstimator::kK1},  {"k1", KlEstimator::kK1}, {"abs", KlEstimator::kAbs},
      {"mse", KlEstimator::kK2}, {"k2", KlEstimator::kK2}, {"low_var_kl", KlEstimator::kK3},
      {"k3", KlEstimator::kK3}};
  for (const auto& [name, estimator] : known) {
    for (const bool straight : {false, true}) {
      const auto kind = parse_kl(std::string(name) + (straight ? "+" : ""));
      ASSERT_TRUE(kind.ok()) << name;
      EXPECT_EQ(kind->value, estimator) << name;
      EXPECT_EQ(kind->straight_through, straight) << name;
    }
  }
  EXPECT_EQ(kl_names().size(), 14u);
  for (const char* wrong : {"", "+", "k4", "k1++", "k"})
    EXPECT_FALSE(parse_kl(wrong).ok()) << wrong;
  EXPECT_NE(parse_kl("k4").status().message().find("kl, k1, abs, mse, k2, low_var_kl, k3, kl+"),
            std::string::npos);
}

TEST(Names, LossAggregationsAreVerls) {
  EXPECT_EQ(*parse_loss_aggregation("token-mean"), LossAggregation::kTokenMean);
  EXPECT_EQ(*parse_loss_aggregation("seq-mean-token-sum"), LossAggregation::kSequenceMeanTokenSum);
  EXPECT_EQ(*parse_loss_aggregation("seq-mean-token-mean"),
            LossAggregation::kSequenceMeanTokenMean);
  EXPECT_EQ(*parse_loss_aggregation("seq-mean-token-sum-norm"),
            LossAggregation::kSequenceMeanTokenSumNorm);
  EXPECT_EQ(*parse_loss_aggregation("token-sum"), LossAggregation::kTokenSum);
  EXPECT_FALSE(parse_loss_aggregation("mean").ok());
}

template <class Enum>
void expect_read_as_written(const std::vector<std::string>& names,
                            Result<Enum> (*parse)(std::string_view)) {
  for (const std::string& name : names) EXPECT_EQ(to_string(*parse(name)), name);
  EXPECT_FALSE(parse("").ok());
}

TEST(Names, LossesAndAdvantagesAreReadAsTheyAreWritten) {
  expect_read_as_written(loss_aggregation_names(), parse_loss_aggregation);
  expect_read_as_written(policy_loss_names(), parse_policy_loss);
  expect_read_as_written(advantage_estimator_names(), parse_advantage_estimator);
  EXPECT_EQ(to_string(*parse_kl("k3+")), "low_var_kl+");
  EXPECT_EQ(to_string(*parse_kl("k1")), "kl");
}

TEST(Names, GspoIsAMeanOfSequences) {
  for (const std::string& name : loss_aggregation_names()) {
    const LossAggregation mode = *parse_loss_aggregation(name);
    for (const PolicyLoss kind : {PolicyLoss::kGspo, PolicyLoss::kSapo, PolicyLoss::kGeoMean})
      EXPECT_EQ(aggregation_of(kind, mode), LossAggregation::kSequenceMeanTokenMean);
    EXPECT_EQ(aggregation_of(PolicyLoss::kCispo, mode), mode);
  }
}

TEST(Names, CheckpointModesAreReadAsTheyAreWritten) {
  for (const CheckpointMode mode : {CheckpointMode::kNone, CheckpointMode::kSelective,
                                    CheckpointMode::kFull, CheckpointMode::kAuto})
    EXPECT_EQ(*parse_checkpoint_mode(to_string(mode)), mode);
  EXPECT_EQ(checkpoint_mode_names(),
            (std::vector<std::string>{"none", "selective", "full", "auto"}));
  EXPECT_FALSE(parse_checkpoint_mode("").ok());
}

TEST(Names, SavedTensorsHaveTheirOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kSavedTensors; ++i)
    names.insert(to_string(static_cast<SavedTensor>(i)));
  EXPECT_EQ(names.size(), kSavedTensors);
  EXPECT_FALSE(names.contains(""));
  EXPECT_EQ(to_string(SavedTensor::kAttentionOut), "attention_out");
  EXPECT_EQ(to_string(SavedTensor::kProduct), "product");
}

TEST(SavedTensors, AreThoseOfTheArchitecture) {
  const auto names = [](const Architecture& a, bool gates_at_once) {
    std::string out;
    for (const SavedTensor tensor : saved_tensors(a, gates_at_once))
      out += std::string(out.empty() ? "" : " ") + std::string(to_string(tensor));
    return out;
  };
  Architecture a;
  a.gated = true;
  EXPECT_EQ(names(a, false),
            "attention_input projections query_key attention_out middle mlp_input gate up "
            "activated product");
  EXPECT_EQ(names(a, true),
            "attention_input projections query_key attention_out middle mlp_input gate up "
            "product");
  a.gated = false;
  a.parallel_residual = true;
  EXPECT_EQ(names(a, true),
            "attention_input projections query_key attention_out mlp_input up activated");
  a.placement = {.before = false, .after = true, .over = false};
  a.parallel_residual = false;
  EXPECT_EQ(names(a, true),
            "projections query_key attention_out attention_result middle up activated mlp_result");
}

TEST(Dtype, RoundsToTheNearestValueThatItHolds) {
  EXPECT_EQ(rounded(0.1, Dtype::kFloat64), 0.1);
  EXPECT_EQ(rounded(0.1, Dtype::kFloat32), static_cast<double>(0.1F));
  EXPECT_EQ(rounded(0.1, Dtype::kBfloat16), 0.10009765625);
  EXPECT_EQ(rounded(0.1, Dtype::kFloat16), 0.0999755859375);
  EXPECT_EQ(rounded(257, Dtype::kBfloat16), 256) << "to even";
  EXPECT_EQ(rounded(-2.7, Dtype::kInt64), -2);
  EXPECT_EQ(rounded(-2.7, Dtype::kBool), 1);
  EXPECT_EQ(rounded(0, Dtype::kBool), 0);
}

}  // namespace
}  // namespace neap::spec
