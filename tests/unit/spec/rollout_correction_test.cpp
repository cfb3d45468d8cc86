#include "spec/types/rollout_correction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"

namespace neap::spec {
namespace {

using ::testing::HasSubstr;

TEST(RolloutCorrection, ThresholdsAreThoseOfFloat32AndMessagesAreShort) {
  RolloutCorrectionConfig config;
  config.rollout_is = "token";
  config.rollout_rs = "token_k1";
  for (const std::size_t digits : {39U, 300U, 400U}) {
    const std::string number(digits, '9');
    for (const std::string& text : {number, "0.5_" + number, format("{0}_{0}", number)}) {
      config.rollout_is_threshold = config.rollout_rs_threshold = text;
      for (const Status& refused :
           {importance_weights(config).status(), rejection_rules(config).status()}) {
        EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument) << text;
        EXPECT_THAT(refused.message(), HasSubstr("none over 3.4e+38"));
        EXPECT_LT(refused.message().size(), 220U) << refused.message();
      }
    }
  }
  config.rollout_is_threshold = config.rollout_rs_threshold = "0.5_1e9";
  EXPECT_TRUE(importance_weights(config).ok());
  EXPECT_TRUE(rejection_rules(config).ok());
  config.rollout_rs = std::string(300, 'x');
  EXPECT_LT(rejection_rules(config).status().message().size(), 260U);
}

}  // namespace
}  // namespace neap::spec
