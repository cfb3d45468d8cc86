// Decoding in CUDA graphs: which steps are one graph, when there are none, and what a plan counts.
#include "step/generation/decode_graphs.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "step/counting/counting_ops.h"

namespace neap::step {
namespace {

TEST(DecodeGraphs, EveryStepIsOneOfFewGraphs) {
  for (const std::int64_t rows : {1, 6, 8}) {
    for (const std::int64_t tokens : {100, 256, 700, 4096}) {
      SCOPED_TRACE(rows);
      SCOPED_TRACE(tokens);
      std::set<GraphKey> keys;
      for_each_graph(rows, tokens, [&](const GraphKey& key) { keys.insert(key); });
      for (std::int64_t row = 1; row <= rows; ++row) {
        for (std::int64_t seen = 1; seen <= tokens; ++seen) {
          const KeyLimit limit = key_limit(seen, tokens, /*flash=*/true);
          ASSERT_EQ(limit.keys, seen);
          ASSERT_GE(limit.rounded, seen);
          ASSERT_LE(limit.rounded, tokens);
          ASSERT_TRUE(keys.contains({decode_bucket(row, rows), limit.rounded}));
        }
      }
    }
  }
  std::set<GraphKey> keys;
  for_each_graph(8, 4096, [&](const GraphKey& key) { keys.insert(key); });
  EXPECT_EQ(keys.size(), 4U * 5);  // 1, 2, 4, 8 rows; 256, 512, 1024, 2048, 4096 keys
}

TEST(DecodeGraphs, AMaskHasTheKeysThatThereAre) {
  EXPECT_EQ(key_limit(300, 4096, /*flash=*/false).rounded, 300);
  EXPECT_EQ(key_limit(300, 4096, /*flash=*/true).rounded, 512);
}

spec::Architecture plain_model() {
  spec::Architecture a;
  a.head_dim = 64;
  a.num_attention_heads = a.num_key_value_heads = 4;
  return a;
}

TEST(DecodeGraphs, AreThereWhereNothingInAStepNeedsTheHost) {
  const auto reason = [](const spec::Architecture& a, const GraphConditions& c) {
    return std::string(no_graphs_reason(a, c));
  };
  const GraphConditions all{true, Dtype::kBfloat16, 1, {}};
  EXPECT_EQ(reason(plain_model(), all), "");
  spec::Architecture sliding = plain_model();
  sliding.sliding_window = 128;
  EXPECT_EQ(reason(sliding, all), "");

  GraphConditions c = all;
  c.cuda = false;
  EXPECT_NE(reason(plain_model(), c), "");
  c = all;
  c.dtype = Dtype::kFloat32;
  EXPECT_NE(reason(plain_model(), c), "");
  c = all;
  c.tensor_ranks = 2;
  EXPECT_NE(reason(plain_model(), c), "");
  c = all;
  c.sampling.repetition_penalty = 1.1;
  EXPECT_NE(reason(plain_model(), c), "");
  spec::Architecture capped = plain_model();
  capped.attention_softcap = 50;
  EXPECT_NE(reason(capped, all), "");
  spec::Architecture slopes = plain_model();
  slopes.alibi = true;
  EXPECT_NE(reason(slopes, all), "");
}

class Requests final : public MemorySink {
 public:
  [[nodiscard]] std::uint64_t allocate(std::int64_t) override { return ++count; }
  void release(std::uint64_t) override {}
  std::uint64_t count = 0;
};

KernelProfile profile_of_gpu() {
  KernelProfile profile;
  profile.cuda = profile.graphs = true;
  profile.rates = {1e12, 1e12, 1e12, 2e-6, 12e-6};
  return profile;
}

TEST(DecodeGraphs, ABodyHasItsOwnMemoryAndNoLaunches) {
  Requests requests;
  CountingOps ops(requests, profile_of_gpu(), 1), eager(requests, profile_of_gpu(), 1);
  const CountedTensor a = CountedTensor::outside({1024}, Dtype::kFloat32);
  const auto body_of = [&](CountingOps& by) {
    return [&] {
      by.repeat(5, [&](std::int64_t) {
        const CountedTensor x = by.exp(a);
        (void)by.add(x, a);
      });
    };
  };
  ops.weighted(3, [&] { ops.graphed({8, 256}, body_of(ops)); });
  EXPECT_EQ(requests.count, 0U);
  EXPECT_EQ(ops.graphs_made().scratch(), 2U * 4096);
  EXPECT_EQ(ops.graphs_made().kernels(), 10);
  eager.weighted(3, [&] { body_of(eager)(); });
  EXPECT_DOUBLE_EQ(ops.work().bytes_moved, eager.work().bytes_moved);
  EXPECT_GT(ops.work().seconds, eager.work().seconds);  // of kernels
  EXPECT_LT(ops.work().issue_seconds, 0.25 * eager.work().issue_seconds);
  EXPECT_LT(ops.work().elapsed(), 0.5 * eager.work().elapsed());

  EXPECT_EQ(ops.graphs_made().count(), 1U);
  ops.weighted(0, [&] { ops.graphed({8, 512}, body_of(ops)); });
  EXPECT_EQ(ops.graphs_made().count(), 2U);
  EXPECT_EQ(ops.graphs_made().kernels(), 10);
  const std::uint64_t before = requests.count;
  (void)ops.exp(a);  // of the phase again
  EXPECT_EQ(requests.count, before + 1);
}

}  // namespace
}  // namespace neap::step
