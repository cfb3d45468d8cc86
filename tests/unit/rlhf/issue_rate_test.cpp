#include <gtest/gtest.h>

#include "rlhf/trainer/issue_rate.h"

namespace neap::rlhf {
namespace {

// On the CPU an operation's own time is in it, too.
TEST(IssueRate, IsMicrosecondsForAnOperation) {
  const double seconds = measure_issue_seconds(at::Device(at::kCPU));
  EXPECT_GT(seconds, 3e-7);
  EXPECT_LT(seconds, 1e-3);
}

}  // namespace
}  // namespace neap::rlhf
