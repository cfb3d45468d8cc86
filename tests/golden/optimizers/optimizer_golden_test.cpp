// Twenty steps of every optimizer against float64 implementations of the papers (make_goldens.py).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "unit/train/unit_with_state.h"

namespace neap {
namespace {

using testing::AtenUnit;

// make_goldens.py: values.
at::Tensor values(std::int64_t stream, std::size_t place, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kDouble);
  auto* const to = out.mutable_data_ptr<double>();
  const auto start =
      static_cast<std::uint64_t>(stream) * 7919 + static_cast<std::uint64_t>(place) * 1000003;
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    auto word = static_cast<std::uint32_t>((start + static_cast<std::uint64_t>(i)) * 2654435761U);
    word = (word ^ (word >> 15)) * 2246822519U;
    to[i] = static_cast<double>(word >> 8) * 0x1p-24 - 0.5;
  }
  return out;
}

at::Tensor gradients(std::int64_t step, std::size_t place, at::IntArrayRef shape) {
  at::Tensor g = values(step, place, shape);
  if (shape.size() != 2) return g;
  for (std::int64_t row = 0; row < shape[0]; ++row) g[row].mul_(1.0 / (1 << (row % 4)));
  if (shape[0] > 1) g[1].zero_();
  return g;
}

spec::OptimizerConfig config_of(const Json& json) {
  spec::OptimizerConfig c;
  c.kind = json.at("optimizer");
  c.lr = json.at("lr");
  c.weight_decay = json.at("weight_decay");
  c.beta2_decay = json.value("beta2_decay", c.beta2_decay);
  c.clip_threshold = json.value("clip_threshold", c.clip_threshold);
  c.relative_step = json.value("relative_step", c.relative_step);
  c.momentum = json.value("momentum", c.momentum);
  c.nesterov = json.value("nesterov", c.nesterov);
  return c;
}

// The largest difference after all steps. `tile` cuts matrices into tiles of rows.
double run(const Json& goldens, const Json& json, std::int64_t tile, spec::Dtype weights) {
  const at::NoGradGuard no_grad;
  ops::AtenOps ops(at::kCPU);
  const spec::OptimizerConfig config = config_of(json.at("config"));
  const spec::OptimizerSpec spec = testing::spec_of(config, weights);
  const std::vector<std::vector<std::int64_t>> shapes = goldens.at("shapes");
  AtenUnit unit = testing::zero_unit(spec, testing::unit_of(shapes));
  for (std::size_t i = 0; i < shapes.size(); ++i)
    testing::part_of(unit, unit.target(), i).copy_(values(0, i, shapes[i]).mul_(0.5));
  step::Update update{spec, config, config.lr};
  update.tile = update.span = tile;
  for (; update.step <= goldens.at("steps"); ++update.step) {
    for (std::size_t i = 0; i < shapes.size(); ++i)
      testing::part_of(unit, unit.gradients, i).copy_(gradients(update.step, i, shapes[i]));
    step::step_unit(ops, unit, update);
  }
  if (unit.master().defined()) {
    EXPECT_TRUE(unit.weights.equal(unit.master().to(at::kBFloat16)));
  }
  double worst = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::vector<double> list = json.at("weights").at(i);
    const at::Tensor want = at::tensor(list, at::kDouble).view(shapes[i]);
    const at::Tensor got = testing::part_of(unit, unit.target(), i).to(at::kDouble);
    worst = std::max(worst, (got - want).abs().max().item<double>());
  }
  return worst;
}

TEST(OptimizerGolden, TwentyStepsAreThoseOfThePapers) {
  const std::string file = NEAP_SOURCE_DIR "/tests/golden/optimizers/goldens.json";
  const Json goldens = value_or_throw(parse_json(value_or_throw(read_file(file, 4_MiB)), file));
  std::size_t kinds = 0;
  for (const Json& json : goldens.at("cases")) {
    const std::string name = json.at("name");
    EXPECT_LT(run(goldens, json, spec::kSumTile, spec::Dtype::kFloat32), 1e-6) << name;
    EXPECT_LT(run(goldens, json, 47, spec::Dtype::kFloat32), 1e-6) << name << " in blocks";
    // bfloat16 weights with float32 masters: the update itself is as exact.
    EXPECT_LT(run(goldens, json, 47, spec::Dtype::kBfloat16), 1e-6) << name << " with masters";
    kinds += name == json.at("config").at("optimizer").get<std::string>() ? 1U : 0U;
  }
  EXPECT_EQ(kinds, spec::optimizer_names().size()) << "an optimizer without a case of its name";
}

}  // namespace
}  // namespace neap
