#include "rlhf/trainer/processor_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace neap::rlhf {
namespace {

using testing::HasSubstr;

TEST(ProcessorShare, WarnsOnceOfARunThatWaitsForCores) {
  ProcessorShare share(2);
  for (int step = 0; step < 2; ++step) EXPECT_FALSE(share.note(1, 10));
  const auto warning = share.note(1, 10);
  ASSERT_TRUE(warning);
  EXPECT_THAT(*warning, HasSubstr("last 30 s had 10 % of one core"));
  EXPECT_THAT(*warning, HasSubstr("all 2 threads"));
  EXPECT_FALSE(share.note(1, 100));
}

TEST(ProcessorShare, AStepThatComputesEndsTheCount) {
  ProcessorShare share(2);
  for (int round = 0; round < 10; ++round) {
    EXPECT_FALSE(share.note(1, 29));
    EXPECT_FALSE(share.note(5, 10));
  }
}

TEST(ProcessorShare, OneThreadWaitsForNoOther) {
  ProcessorShare share(1);
  EXPECT_FALSE(share.note(1, 1000));
}

}  // namespace
}  // namespace neap::rlhf
