#include "spec/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace neap::spec {
namespace {

FlatUnit unit() {
  FlatUnit u;
  u.name = "block.0";
  u.parameters = {{.name = "w", .shape = {48, 32}, .offset = 0},
                  {.name = "b", .shape = {48}, .offset = 1536}};
  u.elements = 1600;
  return u;
}

TEST(OptimizerSpec, AdamWKeepsTwoMoments) {
  const UnitState state = OptimizerSpec{}.state(unit());
  ASSERT_EQ(state.tensors().size(), 2U);
  EXPECT_EQ(state.tensors()[0].name, "exp_avg");
  EXPECT_EQ(state.find("exp_avg_sq")->offset, Bytes(6400));
  EXPECT_EQ(state.find("exp_avg_sq")->shape, std::vector<std::int64_t>{1600});
  EXPECT_EQ(state.bytes(), Bytes(12800));
  EXPECT_EQ(state.find("master"), nullptr);
  EXPECT_EQ(OptimizerSpec{}.gradient_bytes(unit()), Bytes(6400));
}

TEST(OptimizerSpec, NarrowWeightsHaveAMaster) {
  const OptimizerSpec spec{.weights = Dtype::kBfloat16};
  const UnitState state = spec.state(unit());
  ASSERT_NE(state.find("master"), nullptr);
  EXPECT_EQ(state.find("master")->offset, Bytes(12800));
  EXPECT_EQ(state.bytes(), Bytes(19200));
  const OptimizerSpec narrow{.weights = Dtype::kBfloat16, .master = Dtype::kBfloat16};
  EXPECT_EQ(narrow.state(unit()).bytes(), Bytes(12800));
}

// Factored second moments, as of Adafactor: a row and a column of each matrix, a vector else.
TEST(UnitState, HoldsFactoredMomentsOfParameters) {
  const FlatUnit u = unit();
  UnitState state;
  for (std::size_t i = 0; i < u.parameters.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const std::vector<std::int64_t>& shape = u.parameters[i].shape;
    if (shape.size() == 2) {
      state.add("row", {shape[0]}, Dtype::kFloat32, index);
      state.add("column", {shape[1]}, Dtype::kBfloat16, index);
    } else {
      state.add("moment", shape, Dtype::kFloat32, index);
    }
  }
  EXPECT_EQ(state.find("row", 0)->bytes(), Bytes(192));
  EXPECT_EQ(state.find("column", 0)->offset, Bytes(256));
  EXPECT_EQ(state.find("column", 0)->bytes(), Bytes(64));
  EXPECT_EQ(state.find("moment", 1)->offset, Bytes(512));
  EXPECT_EQ(state.find("row", 1), nullptr);
  EXPECT_EQ(state.bytes(), Bytes(768));
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

TEST(OptimizerSpec, EveryNameHasAState) {
  for (const std::string& name : optimizer_names())
    EXPECT_FALSE(OptimizerSpec{.kind = name}.state(unit()).tensors().empty()) << name;
}

}  // namespace
}  // namespace neap::spec
