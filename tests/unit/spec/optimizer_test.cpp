#include "spec/job/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "spec/job/job.h"

namespace neap::spec {
namespace {

FlatUnit unit() {
  FlatUnit u;
  u.name = "block.0";
  u.parameters = {{.name = "w", .shape = {48, 32}, .offset = 0, .spread = {}},
                  {.name = "b", .shape = {48}, .offset = 1536, .spread = {}}};
  u.elements = 1600;
  return u;
}

OptimizerSpec of(const std::string& kind, Dtype weights = Dtype::kFloat32,
                 Dtype dtype = Dtype::kFloat32, double momentum = 0) {
  OptimizerConfig config;
  config.kind = kind;
  config.state_dtype = config.gradient_dtype = config.master_dtype = dtype;
  config.momentum = momentum;
  const Result<OptimizerSpec> spec = OptimizerSpec::of(config, weights);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return spec.value();
}

TEST(OptimizerSpec, AdamWKeepsTwoMoments) {
  const UnitState state = OptimizerSpec{}.state(unit());
  ASSERT_EQ(state.tensors().size(), 2U);
  EXPECT_EQ(state.tensors()[0].name, "exp_avg");
  EXPECT_EQ(state.find("exp_avg_sq")->offset, Bytes(6400));
  EXPECT_EQ(state.find("exp_avg_sq")->elements, 1600);
  EXPECT_EQ(state.bytes(), Bytes(12800));
  EXPECT_EQ(state.find("master"), nullptr);
  EXPECT_EQ(OptimizerSpec{}.gradient_bytes(unit()), Bytes(6400));
}

TEST(OptimizerSpec, NarrowWeightsHaveAMaster) {
  const UnitState state = of("adamw", Dtype::kBfloat16).state(unit());
  ASSERT_NE(state.find("master"), nullptr);
  EXPECT_EQ(state.find("master")->offset, Bytes(12800));
  EXPECT_EQ(state.bytes(), Bytes(19200));
  const OptimizerSpec narrow = of("adamw", Dtype::kBfloat16, Dtype::kBfloat16);
  EXPECT_EQ(narrow.state(unit()).bytes(), Bytes(6656)) << "3200 each, at multiples of 256";
  EXPECT_EQ(narrow.state(unit()).find("master"), nullptr);
  EXPECT_EQ(narrow.gradient_bytes(unit()), Bytes(3200));
}

// A row and a column of each matrix, a number for each element of a vector.
TEST(OptimizerSpec, FactoredMomentsBelongToParameters) {
  const UnitState state = of("adafactor").state(unit());
  EXPECT_EQ(state.find("exp_avg_sq_row", 0)->bytes(), Bytes(192));
  EXPECT_EQ(state.find("exp_avg_sq_col", 0)->offset, Bytes(256));
  EXPECT_EQ(state.find("exp_avg_sq_col", 0)->bytes(), Bytes(128));
  EXPECT_EQ(state.find("exp_avg_sq", 1)->offset, Bytes(512));
  EXPECT_EQ(state.find("exp_avg_sq_row", 1), nullptr);
  EXPECT_EQ(state.bytes(), Bytes(768));
  const UnitState narrow = of("adafactor", Dtype::kBfloat16, Dtype::kBfloat16).state(unit());
  EXPECT_EQ(narrow.find("exp_avg_sq_col", 0)->bytes(), Bytes(64));
}

TEST(OptimizerSpec, MomentumIsABufferOfTheWholeUnit) {
  EXPECT_EQ(of("sgd").state(unit()).bytes(), Bytes());
  EXPECT_EQ(of("sgd", Dtype::kFloat32, Dtype::kFloat32, 0.9).state(unit()).bytes(), Bytes(6400));
  EXPECT_EQ(of("sm3").state(unit()).find("momentum_buffer"), nullptr);
  const UnitState sm3 = of("sm3", Dtype::kBfloat16, Dtype::kBfloat16, 0.9).state(unit());
  EXPECT_EQ(sm3.find("momentum_buffer")->bytes(), Bytes(3200));
  EXPECT_EQ(sm3.find("accumulator_row", 0)->elements, 48);
}

TEST(OptimizerSpec, TypesNarrowerThanTheWeightsAreRefused) {
  for (Dtype OptimizerConfig::*key :
       {&OptimizerConfig::master_dtype, &OptimizerConfig::gradient_dtype}) {
    OptimizerConfig config;
    config.*key = Dtype::kBfloat16;
    EXPECT_TRUE(OptimizerSpec::of(config, Dtype::kBfloat16).ok());
    EXPECT_FALSE(OptimizerSpec::of(config, Dtype::kFloat32).ok());
    config.*key = Dtype::kFloat16;
    EXPECT_FALSE(OptimizerSpec::of(config, Dtype::kBfloat16).ok());
  }
  OptimizerConfig config;
  config.kind = "lion";
  EXPECT_THAT(OptimizerSpec::of(config, Dtype::kFloat32).status().message(),
              ::testing::HasSubstr("adamw, adafactor, sm3, sgd"));
}

TEST(Dtype, RoundsScalarsAsTensorsOfTheType) {
  // Gemma's embedding scales.
  EXPECT_EQ(rounded(std::sqrt(640.0), Dtype::kBfloat16), 25.25);
  EXPECT_EQ(rounded(std::sqrt(2048.0), Dtype::kBfloat16), 45.25);
  EXPECT_EQ(rounded(std::sqrt(3072.0), Dtype::kBfloat16), 55.5);
  EXPECT_EQ(rounded(std::sqrt(3584.0), Dtype::kBfloat16), 59.75);
  EXPECT_EQ(rounded(std::sqrt(5376.0), Dtype::kBfloat16), 73.5);
  EXPECT_EQ(rounded(std::sqrt(3072.0), Dtype::kFloat16), 55.4375);
  EXPECT_EQ(rounded(std::sqrt(3584.0), Dtype::kFloat16), 59.875);
  EXPECT_EQ(rounded(std::sqrt(3072.0), Dtype::kFloat32), static_cast<double>(std::sqrt(3072.0F)));
  EXPECT_EQ(rounded(-0.1, Dtype::kFloat32), static_cast<double>(-0.1F));
  EXPECT_EQ(rounded(0, Dtype::kBfloat16), 0);
}

TEST(OptimizerSpec, NamesAreKinds) {
  for (const std::string& name : optimizer_names()) {
    const Result<OptimizerKind> kind = parse_optimizer(name);
    ASSERT_TRUE(kind.ok());
    EXPECT_EQ(to_string(*kind), name);
    EXPECT_EQ(of(name, Dtype::kBfloat16).state(unit()).tensors().back().name, "master");
  }
}

}  // namespace
}  // namespace neap::spec
