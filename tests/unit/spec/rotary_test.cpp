// Frequencies against numbers of transformers 5.23 (head of 16 dimensions, theta 10000).
#include <gtest/gtest.h>

#include <array>

#include "spec/model/architecture.h"
#include "unit/spec/read_architecture.h"

namespace neap::spec {
namespace {

using Scaling = Rotary::Scaling;
using Eight = std::array<double, 8>;

Rotary rotary(Scaling scaling, double factor, std::int64_t original) {
  Rotary r;
  r.dimensions = 16;
  r.scaling = scaling;
  r.factor = factor;
  r.original_max_positions = original;
  return r;
}
void expect(const Rotary& r, std::int64_t length, const Eight& frequencies, double factor = 1) {
  const RotaryTable table = rotary_table(r, length);
  ASSERT_EQ(table.frequencies.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(table.frequencies[i] / frequencies[i], 1, 3e-6) << i;
  EXPECT_NEAR(table.attention_factor, factor, 5e-7);
}
constexpr Eight kPlain = {1, .316228, .1, .0316228, .01, .00316228, .001, .000316228};

TEST(RotaryTable, PlainAndLinear) {
  expect(rotary(Scaling::kNone, 1, 0), 100, kPlain);
  expect(rotary(Scaling::kLinear, 4, 0), 100,
         {.25, .0790569, .025, .00790569, .0025, .000790569, .00025, 7.90569e-05});
}

TEST(RotaryTable, DynamicFollowsTheLongestSequence) {
  const Rotary r = rotary(Scaling::kDynamic, 2, 4096);
  expect(r, 1, kPlain);
  expect(r, 4096, kPlain);
  expect(r, 8192, {1, .270296, .07306, .0197478, .00533776, .00144278, .000389977, .000105409});
  expect(r, 16384,
         {1, .239481, .0573513, .0137346, .00328917, .000787696, .000188638, 4.51754e-05});
  Rotary narrow = r;
  narrow.dimensions = 2;
  EXPECT_EQ(rotary_table(narrow, 16384).frequencies, std::vector<float>{1});
}

TEST(RotaryTable, YarnInterpolatesSlowDimensions) {
  Rotary r = rotary(Scaling::kYarn, 4, 4096);
  const Eight four = {1, .316228, .1, .0256935, .00625, .0013835, .00025, 7.90569e-05};
  expect(r, 1, four, 1.138629);
  expect(r, 100000, four, 1.138629);
  r.attention_factor = 1.25;
  expect(r, 1, four, 1.25);
  r.attention_factor = 0;
  r.truncate = false;
  expect(r, 1, {1, .316228, .1, .0286136, .00655697, .00128563, .00025, 7.90569e-05}, 1.138629);
  r = rotary(Scaling::kYarn, 40, 4096);
  r.mscale = 1;
  r.mscale_all_dim = .707;
  const Eight forty = {1, .316228, .1, .0239147, .005125, .000849862, 2.5e-05, 7.90569e-06};
  expect(r, 1, forty, 1.085726);
  r.mscale = .5;
  r.mscale_all_dim = 0;  // both or none
  expect(r, 1, forty, 1.368888);
}

TEST(RotaryTable, LongropeDividesEachDimension) {
  Rotary r = rotary(Scaling::kLongrope, 32, 4096);
  r.short_factors.assign(8, 1);
  r.long_factors = {1, 2, 4, 8, 10, 10, 10, 10};
  const double magnitude = 1.190238;  // sqrt(1 + ln 32 / ln 4096)
  expect(r, 4096, kPlain, magnitude);
  expect(r, 4097, {1, .158114, .025, .00395285, .001, .000316228, .0001, 3.16228e-05}, magnitude);
  r.attention_factor = 1.25;
  expect(r, 1, kPlain, 1.25);
  r.attention_factor = 0;
  r.factor = 1;
  expect(r, 1, kPlain, 1);
}

TEST(Alibi, SlopesAreThoseOfThePaper) {
  EXPECT_EQ(alibi_slopes(4), (std::vector<float>{0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F}));
  EXPECT_EQ(alibi_slopes(1), (std::vector<float>{0x1p-8F}));
  // Six heads: those of four, then the first and the third of eight.
  EXPECT_EQ(alibi_slopes(6),
            (std::vector<float>{0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F, 0x1p-1F, 0x1p-3F}));
}

TEST(RotaryTable, Llama3KeepsFastDimensions) {
  Rotary r = rotary(Scaling::kLlama3, 8, 8192);
  expect(r, 1, {1, .316228, .1, .0316228, .01, .00316228, .000213608, 3.95285e-05});
  r.factor = 32;
  expect(r, 1, {1, .316228, .1, .0316228, .01, .00316228, .000129351, 9.88212e-06});
  r = rotary(Scaling::kLlama3, 8, 512);
  expect(r, 1, {1, .316228, .1, .0184967, .00125, .000395285, .000125, 3.95285e-05});
}

// Qwen2.5's own recipe for long texts leaves max_position_embeddings as it is; DeepSeek's has it stretched.
TEST(LongestSequence, YarnStretchesWhatItsOriginalPositionsAre) {
  const auto longest = [](std::int64_t positions, const Json& scaling) {
    const Json config = {{"model_type", "qwen2"},    {"hidden_size", 64},
                         {"intermediate_size", 128}, {"num_hidden_layers", 2},
                         {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                         {"vocab_size", 100},        {"max_position_embeddings", positions},
                         {"rope_scaling", scaling}};
    return read_architecture(config).longest_sequence();
  };
  const Json qwen = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(longest(32768, qwen), 131072);
  EXPECT_EQ(longest(131072, qwen), 131072);
  EXPECT_EQ(longest(40960, qwen), 131072);
  EXPECT_EQ(longest(32768, {{"type", "yarn"}, {"factor", 4.0}}), 131072);
  EXPECT_EQ(longest(32768, {{"type", "dynamic"}, {"factor", 2.0}}), 65536);
  EXPECT_EQ(longest(32768, {{"type", "linear"}, {"factor", 4.0}}), 32768);
  EXPECT_EQ(longest(32768, nullptr), 32768);
}

}  // namespace
}  // namespace neap::spec
