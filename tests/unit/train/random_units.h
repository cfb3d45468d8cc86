// Optimizers of every kind, over units with random weights and gradients.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/status.h"
#include "train/optimizer.h"
#include "unit_with_state.h"

namespace neap::train {

inline parallel::Communicator& alone() {
  static const auto kAlone = parallel::make_single();
  return *kAlone;
}

// Every kind with the settings that change what it keeps.
inline std::vector<spec::OptimizerConfig> all_configs() {
  std::vector<spec::OptimizerConfig> out;
  for (const std::string& name : spec::optimizer_names()) {
    spec::OptimizerConfig c;
    c.kind = name;
    c.lr = 0.01;
    out.push_back(c);
    if (name != "sgd" && name != "sm3") continue;
    c.momentum = 0.9;
    out.push_back(c);
  }
  const std::size_t kinds = out.size();
  for (std::size_t i = 0; i < kinds; ++i) {
    spec::OptimizerConfig narrow = out[i];
    narrow.state_dtype = narrow.gradient_dtype = narrow.master_dtype = spec::Dtype::kBfloat16;
    out.push_back(narrow);
  }
  return out;
}

inline std::string describe(const spec::OptimizerConfig& c) {
  return c.kind + (c.momentum > 0 ? " with momentum, " : ", ") +
         std::string(to_string(c.state_dtype));
}

inline std::vector<OptimizerUnit> random_units(const spec::OptimizerSpec& optimizer) {
  std::vector<OptimizerUnit> units;
  std::int64_t index = 0;
  for (const auto& shapes : std::vector<std::vector<std::vector<std::int64_t>>>{
           {{40, 30}, {30}, {7}}, {{1, 30}, {65}}, {{300}}}) {
    units.push_back(testing::zero_unit(optimizer, testing::unit_of(shapes), index++));
    units.back().target().uniform_(-0.5, 0.5);
    units.back().weights.copy_(units.back().target());
  }
  return units;
}

inline void make_step(Optimizer& optimizer, double lr) {
  ops::AtenOps ops(at::kCPU);
  const step::Update update = optimizer.begin_step(lr);
  for (const OptimizerUnit& unit : optimizer.units()) step::step_unit(ops, unit, update);
}

inline void random_gradients(const std::vector<OptimizerUnit>& units) {
  for (const OptimizerUnit& unit : units) unit.gradients.normal_();
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

inline void expect_same(const std::vector<OptimizerUnit>& a, const std::vector<OptimizerUnit>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same_bits(a[i].weights, b[i].weights)) << "weights of unit " << i;
    for (std::size_t s = 0; s < a[i].state.size(); ++s)
      EXPECT_TRUE(same_bits(a[i].state[s], b[i].state[s])) << a[i].layout.tensors()[s].name;
  }
}

}  // namespace neap::train
