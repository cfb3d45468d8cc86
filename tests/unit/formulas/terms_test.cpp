// The terms against the papers' own numbers.
#include "formulas/terms.h"

#include <gtest/gtest.h>

#include <array>

namespace neap::formulas {
namespace {

constexpr double kGb = 1e9, kGib = 1024.0 * 1024 * 1024;
constexpr Decoder kGpt3{96, 12288, 96, 50257};
constexpr Decoder kBloom7{30, 4096, 32, 250880};

// "Transformer memory", table of LLaMA: 12 l h^2 of four models, to the parameter.
TEST(Terms, TwelveLayersOfSquaresAreLlamasParameters) {
  const auto approximate = [](double layers, double hidden) {
    const Decoder d{layers, hidden, 1, 0};
    // Without the terms of h: 13 l h.
    return parameters(d) - 13 * layers * hidden;
  };
  EXPECT_EQ(approximate(32, 4096), 6442450944);
  EXPECT_EQ(approximate(40, 5120), 12582912000);
  EXPECT_EQ(approximate(60, 6656), 31897681920);
  EXPECT_EQ(approximate(80, 8192), 64424509440);
}

TEST(Terms, BloomsParametersAreExact) {
  // bigscience/bloom-7b1 has 7 069 016 064: the norms behind the table and before the head are 4 h.
  EXPECT_EQ(parameters(kBloom7) + 4 * 4096, 7069016064);
}

// Habana, Memory-Efficient Training on Gaudi with DeepSpeed: 1 billion parameters, Adam.
TEST(Terms, ZeroTakesSixteenGigabytesToFourAndTwo) {
  const auto gigabytes = [](std::int64_t stage, double ranks) {
    return states(1e9, adam(2), stage, ranks).sum() / kGb;
  };
  for (const double ranks : {1.0, 8.0, 1024.0}) EXPECT_DOUBLE_EQ(gigabytes(0, ranks), 16);
  EXPECT_DOUBLE_EQ(gigabytes(1, 8), 5.5);
  EXPECT_DOUBLE_EQ(gigabytes(2, 8), 3.75);
  EXPECT_DOUBLE_EQ(gigabytes(3, 8), 2);
  EXPECT_DOUBLE_EQ(gigabytes(1, 1e12), 4 + 12e-12);
  EXPECT_DOUBLE_EQ(gigabytes(2, 1e12), 2 + 14e-12);
  for (std::int64_t stage = 0; stage <= 3; ++stage) EXPECT_DOUBLE_EQ(gigabytes(stage, 1), 16);
}

// Gradients that add up in float32: 18 bytes a parameter.
TEST(Terms, WideGradientsTakeEighteen) {
  const ParameterBytes wide{2, 4, 12};
  const auto gigabytes = [&](std::int64_t stage, double ranks) {
    return states(1e9, wide, stage, ranks).sum() / kGb;
  };
  EXPECT_DOUBLE_EQ(gigabytes(0, 8), 18);
  EXPECT_DOUBLE_EQ(gigabytes(1, 8), 7.5);
  EXPECT_DOUBLE_EQ(gigabytes(2, 8), 4.0);
}

// Rajbhandari et al., figure 1: 7.5 billion parameters on 64 GPUs.
TEST(Terms, ZerosFigureOfSevenBillion) {
  const auto gigabytes = [](std::int64_t stage) {
    return states(7.5e9, adam(2), stage, 64).sum() / kGb;
  };
  EXPECT_NEAR(gigabytes(0), 120, 0.05);
  EXPECT_NEAR(gigabytes(1), 31.4, 0.05);
  EXPECT_NEAR(gigabytes(2), 16.6, 0.05);
  EXPECT_NEAR(gigabytes(3), 1.9, 0.05);
}

// "Transformer memory", table of GPT3-175B.
TEST(Terms, Gpt3sActivations) {
  const auto gigabytes = [](double batch) {
    return activations(kGpt3, {batch, 2048}, Recompute::kNone, {}, 1) / kGb;
  };
  EXPECT_NEAR(gigabytes(1), 275, 0.5);
  EXPECT_NEAR(gigabytes(64), 17600, 50);
  EXPECT_NEAR(gigabytes(128), 35300, 50);
}

// "Transformer memory", tables of bloom-7b: with TP 8 it follows the formula without sequence
// parallelism, and PP 4 does not change the first stage's activations.
TEST(Terms, BloomsActivations) {
  const auto gibibytes = [](const Degrees& degrees, double width) {
    return activations(kBloom7, {1, 2048, width}, Recompute::kNone, degrees, 4) / kGib;
  };
  EXPECT_NEAR(gibibytes({.tensor = 8}, 2), 5.4, 0.05);
  EXPECT_NEAR(gibibytes({.tensor = 8, .pipeline = 4}, 2), 5.4, 0.05);
  EXPECT_NEAR(gibibytes({.tensor = 8, .pipeline = 4}, 4), 10.8, 0.05);
  // An eighth of the undivided ones.
  EXPECT_NEAR(gibibytes({.tensor = 8, .sequence_parallel = true}, 2), gibibytes({}, 2) / 8, 1e-9);
}

// The first stage keeps the embedding: 1.2 GB of weights in fp32, where N / 32 would be 0.8.
TEST(Terms, BloomsFirstStageHasTheEmbedding) {
  const double layer = 12.0 * 4096 * 4096 + 13 * 4096, table = 250880.0 * 4096;
  const double n = stage_parameters(layer, 30, table, {.tensor = 8, .pipeline = 4});
  EXPECT_NEAR(4 * n / kGib, 1.2, 0.05);
  EXPECT_NEAR(states(n, adam(4), 0, 1).optimizer / kGib, 2.4, 0.05);
  EXPECT_NEAR(states(n, adam(2), 0, 1).optimizer / kGib, 3.5, 0.05);
  EXPECT_DOUBLE_EQ(stage_parameters(layer, 30, table, {}), 30 * layer + table);
}

// Korthikanti et al., table 2, in units of s b h: 5 a s / h is 80 for GPT-3.
TEST(Terms, KorthikantisTable) {
  const MicroBatch batch{1, 2048};
  const double sbh = 2048.0 * 12288;
  const auto layer = [&](Recompute recompute, std::int64_t tensor, bool sequence) {
    return layer_activations(kGpt3, batch, recompute,
                             {.tensor = tensor, .sequence_parallel = sequence}) /
           sbh;
  };
  EXPECT_DOUBLE_EQ(layer(Recompute::kNone, 1, false), 34 + 80);
  EXPECT_DOUBLE_EQ(layer(Recompute::kSelective, 1, false), 34);
  EXPECT_DOUBLE_EQ(layer(Recompute::kFull, 1, false), 2);
  EXPECT_DOUBLE_EQ(layer(Recompute::kNone, 8, false), 10 + 3 + 10);
  EXPECT_DOUBLE_EQ(layer(Recompute::kNone, 8, true), (34 + 80) / 8.0);
  EXPECT_DOUBLE_EQ(layer(Recompute::kSelective, 8, false), 10 + 3);
  EXPECT_DOUBLE_EQ(layer(Recompute::kSelective, 8, true), 34 / 8.0);
  EXPECT_DOUBLE_EQ(layer(Recompute::kFull, 8, true), 2);
}

TEST(Terms, FewMicroBatchesFillAPipelineInPart) {
  const auto kept = [](std::int64_t stages, double micro_batches) {
    return activations(kGpt3, {1, 2048}, Recompute::kFull, {.pipeline = stages}, micro_batches);
  };
  EXPECT_DOUBLE_EQ(kept(8, 8), kept(1, 1));
  EXPECT_DOUBLE_EQ(kept(8, 64), kept(1, 1));
  EXPECT_DOUBLE_EQ(kept(8, 2), kept(1, 1) / 4);
  EXPECT_DOUBLE_EQ(pipeline_bubble({.pipeline = 8}, 64), 7 / 64.0);
  EXPECT_DOUBLE_EQ(pipeline_bubble({.pipeline = 8, .chunks = 2}, 64), 7 / 128.0);
  EXPECT_DOUBLE_EQ(pipeline_bubble({.pipeline = 8, .zero_bubble = true}, 64), 7 / 192.0);
  EXPECT_DOUBLE_EQ(pipeline_bubble({}, 64), 0);
  const auto interleaved =
      activations(kGpt3, {1, 2048}, Recompute::kFull, {.pipeline = 8, .chunks = 2}, 64);
  EXPECT_DOUBLE_EQ(interleaved, kept(8, 64) * (1 + 7 / 16.0));
}

// "Transformer memory", KV cache: 4 b l h (s + n) in float16. Its usual example: GPT-3, batch 64,
// 512 + 32 tokens, is 164 GB.
TEST(Terms, KvCache) {
  EXPECT_DOUBLE_EQ(kv_cache(kGpt3, 64, 544, 2), 4.0 * 64 * 96 * 12288 * 544);
  EXPECT_NEAR(kv_cache(kGpt3, 64, 544, 2) / kGb, 164, 0.5);
}

TEST(Terms, DegreesThatNoModelHasAreRefused) {
  EXPECT_TRUE(check({}, 1).ok());
  EXPECT_TRUE(
      check({.tensor = 8, .pipeline = 4, .data = 2, .zero = 3, .sequence_parallel = true}, 4).ok());
  for (const Degrees& wrong :
       {Degrees{.tensor = 0}, Degrees{.pipeline = 5}, Degrees{.data = 0}, Degrees{.zero = 4},
        Degrees{.zero = -1}, Degrees{.sequence_parallel = true}})
    EXPECT_EQ(check(wrong, 4).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace neap::formulas
