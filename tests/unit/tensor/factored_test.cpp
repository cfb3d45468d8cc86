// Adafactor and SM3 of matrices that ranks divide: weights and states of all parts are those of the whole.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "join_parts.h"
#include "ops/aten_ops.h"
#include "ops/transformer.h"
#include "spec/model/tensor_parallel.h"
#include "step/units/optimizer.h"
#include "thread_ranks.h"
#include "weights/unit_cuts.h"

namespace neap::ops {
namespace {

using at::Tensor;

constexpr double kNear = 2e-6;
constexpr int kSteps = 3;

spec::Architecture qwen3() {  // 4 heads, 2 key heads
  const std::string file = std::string(NEAP_SOURCE_DIR) + "/tests/golden/architectures/qwen3.json";
  const Json json = value_or_throw(parse_json(value_or_throw(read_file(file, 1_MiB)), file));
  return value_or_throw(spec::Architecture::from_json(json["config"], file));
}

struct FactoredCase {
  spec::OptimizerConfig config;
  spec::LoraShape lora{};
  [[nodiscard]] std::vector<spec::FlatUnit> layout(const spec::Architecture& a) const {
    return lora.rank > 0 ? spec::lora_layout(a, spec::Head::kLanguageModel, lora)
                         : spec::flat_layout(a, spec::Head::kLanguageModel);
  }
};

// Of a model or a part: weights, and states in the order of StatePlacement::states().
struct Stepped {
  std::vector<Tensor> weights, states;
};

Stepped stepped(const FactoredCase& setup, const std::vector<spec::FlatUnit>& units,
                std::vector<Tensor> weights, const std::vector<std::vector<Tensor>>& gradients,
                parallel::Communicator* ranks) {
  AtenOps ops(at::kCPU, {}, {.tensor = ranks});
  const auto optimizer =
      value_or_throw(spec::OptimizerSpec::of(setup.config, spec::Dtype::kFloat32));
  std::vector<step::TrainedUnit<Tensor>> all;
  for (std::size_t u = 0; u < units.size(); ++u)
    all.push_back(step::make_trained_unit(
        optimizer, units[u], static_cast<std::int64_t>(u), weights[u], Tensor(),
        [](const spec::StateTensor& t) { return at::zeros({t.elements}, at::kFloat); }));
  for (int step = 1; step <= kSteps; ++step) {
    step::Update update{optimizer, setup.config, 0.01, step};
    update.tile = 64;  // several tiles of a matrix
    for (std::size_t u = 0; u < units.size(); ++u) {
      all[u].gradients = gradients[static_cast<std::size_t>(step - 1)][u];
      step::step_unit(ops, all[u], update);
    }
  }
  Stepped out{std::move(weights), {}};
  for (const step::TrainedUnit<Tensor>& unit : all)
    out.states.insert(out.states.end(), unit.state.begin(), unit.state.end());
  return out;
}

std::vector<Tensor> random_units(const std::vector<spec::FlatUnit>& units, double size) {
  std::vector<Tensor> out;
  for (const spec::FlatUnit& unit : units) {
    out.push_back(at::zeros({unit.elements}, at::kFloat));
    for (const spec::Parameter& p : unit.parameters)
      parameter_view(out.back(), p).copy_(at::randn(p.shape, at::kFloat).mul_(size));
  }
  return out;
}

void expect_near(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double scale = b.abs().max().item<double>();
  EXPECT_LE((a - b).abs().max().item<double>(), kNear * scale) << what;
}

void compare_parts(const FactoredCase& setup, int size) {
  SCOPED_TRACE(setup.config.kind + " on " + std::to_string(size) + " ranks");
  const spec::Architecture whole = qwen3();
  const std::vector<spec::FlatUnit> units = setup.layout(whole);
  const std::vector<Tensor> start = random_units(units, 0.1);
  std::vector<std::vector<Tensor>> gradients;
  gradients.reserve(kSteps);
  for (int step = 0; step < kSteps; ++step) gradients.push_back(random_units(units, 1));
  const auto clones = [](const std::vector<Tensor>& tensors) {
    std::vector<Tensor> out;
    out.reserve(tensors.size());
    for (const Tensor& t : tensors) out.push_back(t.clone());
    return out;
  };
  const Stepped one = stepped(setup, units, clones(start), gradients, nullptr);

  const auto part_units = setup.layout(value_or_throw(spec::part_of(whole, {size, 0}, "actor")));
  const weights::UnitCuts cuts(whole, size, units, part_units);
  std::vector<Stepped> parts(static_cast<std::size_t>(size));
  testing::on_ranks(size, [&](parallel::Communicator& communicator) {
    const std::int64_t rank = communicator.rank();
    const auto own = setup.layout(value_or_throw(spec::part_of(whole, {size, rank}, "actor")));
    const auto taken = [&](const std::vector<Tensor>& from) {
      std::vector<Tensor> out;
      for (std::size_t u = 0; u < own.size(); ++u) {
        out.push_back(at::zeros({own[u].elements}, at::kFloat));
        cuts.take(u, rank, from[u], out[u]);
      }
      return out;
    };
    std::vector<std::vector<Tensor>> own_gradients;
    own_gradients.reserve(gradients.size());
    for (const std::vector<Tensor>& g : gradients) own_gradients.push_back(taken(g));
    parts[static_cast<std::size_t>(rank)] =
        stepped(setup, own, taken(start), own_gradients, &communicator);
  });

  for (std::size_t u = 0; u < units.size(); ++u) {
    const Tensor joined = at::zeros_like(one.weights[u]);
    for (int r = 0; r < size; ++r)
      testing::join_part(cuts, u, r, parts[static_cast<std::size_t>(r)].weights[u], joined);
    expect_near(joined, one.weights[u], units[u].name);
  }
  const auto optimizer =
      value_or_throw(spec::OptimizerSpec::of(setup.config, spec::Dtype::kFloat32));
  const std::vector<spec::WholeState> states = spec::StatePlacement(optimizer, part_units).states();
  ASSERT_EQ(states.size(), one.states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Tensor joined = at::zeros_like(one.states[i]), writes = at::zeros_like(one.states[i]);
    for (int r = 0; r < size; ++r) {
      const Tensor& mine = parts[static_cast<std::size_t>(r)].states[i];
      for (const weights::PartRun& run : cuts.runs(states[i], r)) {
        joined.narrow(0, run.whole, run.count).copy_(mine.narrow(0, run.part, run.count));
        writes.narrow(0, run.whole, run.count).add_(1);
      }
    }
    for (const weights::PartRun& run : cuts.padding(states[i]))
      writes.narrow(0, run.whole, run.count).add_(1);
    EXPECT_TRUE(writes.eq(1).all().item<bool>()) << states[i].name;
    expect_near(joined, one.states[i], states[i].name);
    // What ranks have twice, and what they read from the whole, is the same.
    for (int r = 0; r < size; ++r) {
      const Tensor& mine = parts[static_cast<std::size_t>(r)].states[i];
      const Tensor again = mine.clone();
      cuts.take(states[i], r, joined, again);
      EXPECT_TRUE(again.equal(mine)) << states[i].name << ", rank " << r;
    }
  }
}

TEST(FactoredParts, StepAsTheWhole) {
  at::set_num_threads(1);
  at::manual_seed(11);
  for (const int size : {2, 4}) {
    for (const char* kind : {"adafactor", "sm3"}) {
      for (const bool variant : {false, true}) {
        FactoredCase setup;
        setup.config.kind = kind;
        setup.config.relative_step = variant;
        setup.config.momentum = variant ? 0.9 : 0;
        setup.config.weight_decay = variant ? 0.1 : 0;
        compare_parts(setup, size);
        setup.lora = {.rank = 3, .targets = {std::string(spec::kAllLinear)}};
        compare_parts(setup, size);
      }
    }
  }
}

}  // namespace
}  // namespace neap::ops
