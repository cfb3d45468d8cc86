#include "bridge/attention.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <set>

namespace neap::bridge {
namespace {

TEST(Attention, EveryUseHasAKernel) {
  pin_attention(/*deterministic=*/false);
  std::set<std::pair<std::string, std::string>> uses;
  for (const AttentionKernel& k : attention_kernels(at::kCPU)) {
    EXPECT_TRUE(uses.emplace(k.use, k.dtype).second);
    EXPECT_TRUE(k.kernel == "flash" || k.kernel == "math") << k.kernel;
  }
  EXPECT_EQ(uses.size(), 6U);
}

TEST(Attention, CudnnIsForTrainingThatNeedNotRepeat) {
  const auto cudnn = [] { return at::globalContext().userEnabledCuDNNSDP(); };
  pin_attention(true);
  EXPECT_FALSE(cudnn());
  {
    const GenerationAttention scope;
    EXPECT_FALSE(cudnn());
  }
  EXPECT_FALSE(cudnn());
  pin_attention(false);
  {
    const GenerationAttention scope;
    EXPECT_FALSE(cudnn());
  }
  EXPECT_TRUE(cudnn());
}

TEST(Attention, BackwardIsDeterministicWhereAskedAndOnlyThere) {
  const auto inside = [] {
    const AttentionBackward scope;
    return at::globalContext().deterministicAlgorithms() &&
           !at::globalContext().deterministicAlgorithmsWarnOnly();
  };
  pin_attention(false);
  EXPECT_FALSE(inside());
  pin_attention(true);
  EXPECT_TRUE(inside());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  // What the program had set comes back.
  at::globalContext().setDeterministicAlgorithms(true, true);
  EXPECT_TRUE(inside());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, false);
  pin_attention(false);
}

}  // namespace
}  // namespace neap::bridge
