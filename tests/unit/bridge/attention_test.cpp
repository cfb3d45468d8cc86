#include "bridge/attention.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <set>

namespace neap::bridge {
namespace {

TEST(Attention, EveryUseHasAKernel) {
  const bool before = at::globalContext().userEnabledCuDNNSDP();
  std::set<std::pair<std::string, std::string>> uses;
  for (const AttentionKernel& k : attention_kernels(at::kCPU)) {
    EXPECT_TRUE(uses.emplace(k.use, k.dtype).second);
    EXPECT_TRUE(k.kernel == "flash" || k.kernel == "math") << k.kernel;
  }
  EXPECT_EQ(uses.size(), 6U);
  EXPECT_EQ(at::globalContext().userEnabledCuDNNSDP(), before);
}

TEST(Attention, BackwardIsDeterministicWhereAskedAndOnlyThere) {
  const auto inside = [](bool deterministic) {
    const AttentionBackward scope({deterministic});
    return at::globalContext().deterministicAlgorithms() &&
           !at::globalContext().deterministicAlgorithmsWarnOnly();
  };
  EXPECT_FALSE(inside(false));
  EXPECT_TRUE(inside(true));
  EXPECT_FALSE(inside(false)) << "a job's choice is not the next one's";
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  // What the program had set comes back.
  at::globalContext().setDeterministicAlgorithms(true, true);
  EXPECT_TRUE(inside(true));
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace neap::bridge
