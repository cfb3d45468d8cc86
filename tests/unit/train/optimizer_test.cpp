#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/rounding.h"
#include "step/units/gradient_norm.h"
#include "step/units/update_parts.h"
#include "unit_with_state.h"

namespace neap::train {
namespace {

using spec::Dtype;
using testing::spec_of;
using testing::unit_of;
using testing::zero_unit;

parallel::Communicator& alone() {
  static const auto communicator = parallel::make_single();
  return *communicator;
}

constexpr double kBfloat16Step = 1.0 / 128;  // spacing of bfloat16 in [1, 2)

// Every kind with the settings that change what it keeps.
std::vector<spec::OptimizerConfig> all_configs() {
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

std::string describe(const spec::OptimizerConfig& c) {
  return c.kind + (c.momentum > 0 ? " with momentum, " : ", ") +
         std::string(to_string(c.state_dtype));
}

std::vector<OptimizerUnit> random_units(const spec::OptimizerSpec& optimizer) {
  std::vector<OptimizerUnit> units;
  std::int64_t index = 0;
  for (const auto& shapes : std::vector<std::vector<std::vector<std::int64_t>>>{
           {{40, 30}, {30}, {7}}, {{1, 30}, {65}}, {{300}}}) {
    units.push_back(zero_unit(optimizer, unit_of(shapes), index++));
    units.back().target().uniform_(-0.5, 0.5);
    units.back().weights.copy_(units.back().target());
  }
  return units;
}

void make_step(Optimizer& optimizer, double lr) {
  ops::AtenOps ops(at::kCPU);
  const step::Update update = optimizer.begin_step(lr);
  for (const OptimizerUnit& unit : optimizer.units()) step::step_unit(ops, unit, update);
}

void random_gradients(std::vector<OptimizerUnit> units) {
  for (OptimizerUnit& unit : units) unit.gradients.normal_();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

void expect_same(const std::vector<OptimizerUnit>& a, const std::vector<OptimizerUnit>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same_bits(a[i].weights, b[i].weights)) << "weights of unit " << i;
    for (std::size_t s = 0; s < a[i].state.size(); ++s)
      EXPECT_TRUE(same_bits(a[i].state[s], b[i].state[s])) << a[i].layout.tensors()[s].name;
  }
}

// Parts of `elements` of the units, in memory of their own as in a slot.
void make_step_by_parts(Optimizer& optimizer, double lr, std::int64_t elements) {
  ops::AtenOps ops(at::kCPU);
  const step::Update update = optimizer.begin_step(lr);
  std::vector<spec::FlatUnit> flat;
  for (const OptimizerUnit& unit : optimizer.units()) flat.push_back(unit.unit);
  const step::UpdateParts parts({optimizer.spec(), flat}, 0, std::vector<bool>(flat.size()));
  for (const step::UpdatePart& whole : parts.list()) {
    const OptimizerUnit& unit = optimizer.units()[whole.unit];
    for (std::int64_t first = 0; first < whole.count; first += elements) {
      const step::UpdatePart part{whole.piece, whole.unit, first,
                                  std::min(elements, whole.count - first)};
      const step::PartLayout layout = parts.layout(part);
      const at::Tensor slot =
          at::empty({static_cast<std::int64_t>(layout.bytes.count())}, at::kByte);
      const auto in_slot = [&](const step::PartTensor& t) {
        return slot
            .narrow(0, static_cast<std::int64_t>(t.slot_offset.count()),
                    static_cast<std::int64_t>(t.bytes().count()))
            .view(bridge::to_aten(t.dtype));
      };
      const auto at_rest = [&](const step::PartTensor& t) {
        const bool flat_tensor = unit.layout.tensors()[t.state].parameter < 0;
        return unit.state[t.state].narrow(0, flat_tensor ? first : 0, t.elements);
      };
      for (const step::PartTensor& t : layout.tensors) in_slot(t).copy_(at_rest(t));
      step::step_unit(ops, step::part_of(ops, unit, part, layout, in_slot), update);
      for (const step::PartTensor& t : layout.tensors) at_rest(t).copy_(in_slot(t));
    }
  }
}

TEST(Optimizer, AnyPartsOfTheUnitsGiveTheSameBits) {
  for (const spec::OptimizerConfig& config : all_configs()) {
    SCOPED_TRACE(describe(config));
    const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
    const auto run = [&](std::int64_t elements) {
      at::manual_seed(3);
      Optimizer optimizer(config, spec, 11, random_units(spec), alone());
      for (int t = 0; t < 3; ++t) {
        random_gradients(optimizer.units());
        if (elements == 0) {
          make_step(optimizer, config.lr);
        } else {
          make_step_by_parts(optimizer, config.lr, elements);
        }
      }
      return optimizer.units();
    };
    const auto whole = run(0);
    expect_same(whole, run(1 << 20));
    const bool factored =
        spec.kind == spec::OptimizerKind::kAdafactor || spec.kind == spec::OptimizerKind::kSm3;
    if (!factored) expect_same(whole, run(192));
  }
}

// Every rank's pieces, with states of their own that start as those of the whole units, over shared weights
// and gradients. Ranks that have nothing of a unit are left out.
std::vector<OptimizerUnit> pieces_of_ranks(const std::vector<OptimizerUnit>& units,
                                           const spec::StatePlacement& placement,
                                           std::int64_t ranks) {
  ops::AtenOps ops(at::kCPU);
  std::vector<OptimizerUnit> out;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (const spec::Piece& piece : placement.pieces(rank)) {
      const OptimizerUnit& unit = units[piece.unit];
      std::size_t next = 0;
      out.push_back(step::make_piece(ops, unit, piece, placement.state(piece),
                                     [&](const spec::StateTensor& t) {
                                       return unit.state[next++]
                                           .narrow(0, t.parameter < 0 ? piece.first : 0, t.elements)
                                           .clone();
                                     }));
    }
  }
  return out;
}

TEST(Optimizer, PiecesOfAllRanksAreTheWholeStepBitByBit) {
  for (const spec::OptimizerConfig& config : all_configs()) {
    const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
    for (const std::int64_t ranks : {2, 3, 4, 5}) {
      SCOPED_TRACE(describe(config) + " on " + std::to_string(ranks));
      const auto run = [&](bool sliced) {
        at::manual_seed(3);
        Optimizer optimizer(config, spec, 11, random_units(spec), alone());
        std::vector<spec::FlatUnit> flat;
        for (const OptimizerUnit& unit : optimizer.units()) flat.push_back(unit.unit);
        const spec::StatePlacement placement(spec, flat, {ranks, sliced ? 1 : 0},
                                             spec::kParameterAlignment);
        const std::vector<OptimizerUnit> pieces =
            pieces_of_ranks(optimizer.units(), placement, sliced ? ranks : 1);
        ops::AtenOps ops(at::kCPU);
        for (int t = 0; t < 3; ++t) {
          random_gradients(optimizer.units());
          const step::Update update = optimizer.begin_step(config.lr, 0.5);
          for (const OptimizerUnit& piece : pieces) step::step_unit(ops, piece, update);
        }
        std::vector<at::Tensor> out;
        for (const OptimizerUnit& unit : optimizer.units()) out.push_back(unit.weights);
        // States as in a checkpoint.
        for (const spec::WholeState& state : placement.states()) {
          std::vector<at::Tensor> parts;
          std::int64_t next = 0;
          for (const spec::OwnedRange& owner : placement.owners(state)) {
            EXPECT_EQ(owner.first, next);
            next += owner.count;
            for (const OptimizerUnit& piece : pieces)
              if (piece.index == static_cast<std::int64_t>(state.unit) &&
                  (!state.flat() || piece.first == owner.first))
                parts.push_back(piece.state[state.tensor]);
          }
          out.push_back(at::cat(parts));
        }
        return out;
      };
      const std::vector<at::Tensor> whole = run(false), sliced = run(true);
      ASSERT_EQ(whole.size(), sliced.size());
      for (std::size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(same_bits(whole[i], sliced[i])) << "tensor " << i;
    }
  }
}

TEST(Optimizer, AStepOfAUnitLeavesOthersAlone) {
  for (const spec::OptimizerConfig& config : all_configs()) {
    SCOPED_TRACE(describe(config));
    const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
    Optimizer optimizer(config, spec, 11, random_units(spec), alone());
    random_gradients(optimizer.units());
    const at::Tensor first = optimizer.units()[0].weights.clone();
    const at::Tensor second = optimizer.units()[1].weights.clone();
    ops::AtenOps ops(at::kCPU);
    step::step_unit(ops, optimizer.units()[1], optimizer.begin_step(0.01));
    EXPECT_TRUE(same_bits(optimizer.units()[0].weights, first));
    EXPECT_FALSE(same_bits(optimizer.units()[1].weights, second));
    const OptimizerUnit& untouched = optimizer.units()[0];
    for (std::int64_t place = 0; place < std::ssize(untouched.state); ++place) {
      if (place == untouched.place("master")) continue;
      EXPECT_EQ(untouched.at(place).count_nonzero().item<std::int64_t>(), 0);
    }
  }
}

// Weights and states of a resumed run are bits of a file; the step's number is all else it needs.
TEST(Optimizer, ResumesFromItsStatesAndStepBitByBit) {
  for (const spec::OptimizerConfig& config : all_configs()) {
    SCOPED_TRACE(describe(config));
    const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
    at::manual_seed(5);
    Optimizer whole(config, spec, 11, random_units(spec), alone());
    std::vector<OptimizerUnit> copy;
    for (int t = 0; t < 6; ++t) {
      if (t == 3) {
        for (OptimizerUnit unit : whole.units()) {
          unit.weights = unit.weights.clone();
          unit.gradients = at::full_like(unit.gradients, 7);
          for (at::Tensor& state : unit.state) state = state.clone();
          copy.push_back(unit);
        }
      }
      at::manual_seed(100 + static_cast<std::uint64_t>(t));
      random_gradients(whole.units());
      make_step(whole, config.lr);
    }
    Optimizer resumed(config, spec, 11, copy, alone());
    resumed.restore_steps(3);
    for (int t = 3; t < 6; ++t) {
      at::manual_seed(100 + static_cast<std::uint64_t>(t));
      random_gradients(resumed.units());
      make_step(resumed, config.lr);
    }
    expect_same(whole.units(), resumed.units());
    EXPECT_EQ(resumed.steps(), 6);
  }
}

TEST(Optimizer, MastersTakeUpdatesThatBfloat16WouldLose) {
  spec::OptimizerConfig config;
  config.weight_decay = 0;
  const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
  const OptimizerUnit unit = zero_unit(spec, unit_of({{4}}));
  for (const at::Tensor& t : {unit.weights, unit.gradients, unit.master()}) at::Tensor(t).fill_(1);
  Optimizer adam(config, spec, 0, {unit}, alone());
  for (int i = 0; i < 100; ++i)
    make_step(adam, 1e-4);  // one step is far below bfloat16's spacing at 1
  EXPECT_NEAR(unit.master()[0].item<double>(), 0.99, 1e-4);
  EXPECT_NEAR(unit.weights[0].item<double>(), 0.99, 0.004);
}

TEST(Optimizer, ClipsByTheNormOverAllUnitsAndRefusesNormsThatAreNotFinite) {
  for (const spec::Dtype dtype : {spec::Dtype::kFloat32, spec::Dtype::kBfloat16}) {
    spec::OptimizerConfig config;
    config.gradient_dtype = dtype;
    const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
    const std::vector<OptimizerUnit> units = {zero_unit(spec, unit_of({{1}}), 0),
                                              zero_unit(spec, unit_of({{1}}), 1)};
    units[0].gradients[0] = 3;
    units[1].gradients[0] = 4;
    Optimizer adam(config, spec, 0, units, alone());
    ops::AtenOps ops(at::kCPU);
    EXPECT_DOUBLE_EQ(step::joint_norm(ops, step::piece_norms(ops, adam.units())), 5);
    EXPECT_EQ(adam.clip_scale(5, 0), 1);
    EXPECT_EQ(adam.clip_scale(5, 6), 1);
    EXPECT_NEAR(adam.clip_scale(5, 1), 0.2, 1e-6);
    // A step scales what it reads.
    step::step_unit(ops, units[0], adam.begin_step(0, 0.2));
    EXPECT_NEAR(units[0].gradients[0].item<double>(), 0.6, 0.002);
    EXPECT_EQ(units[1].gradients[0].item<double>(), 4);
    units[1].gradients.fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_FALSE(adam.accepts(step::joint_norm(ops, step::piece_norms(ops, adam.units()))));
    EXPECT_FALSE(adam.accepts(std::numeric_limits<double>::infinity()));
    EXPECT_EQ(adam.refused_in_a_row(), 2);
    EXPECT_TRUE(adam.accepts(1));
    EXPECT_EQ(adam.refused_in_a_row(), 0);
  }
}

// A norm of all elements at once would have other last bits.
TEST(GradientNorm, HasTheSameBitsWhereverAUnitIsCutBetweenTiles) {
  const spec::OptimizerSpec spec = spec_of(spec::OptimizerConfig{});
  constexpr std::int64_t kElements = 2 * step::kTile + 12'288;
  const OptimizerUnit whole = zero_unit(spec, unit_of({{kElements}}));
  at::manual_seed(5);
  at::Tensor(whole.gradients).normal_();
  std::vector<OptimizerUnit> parts;
  for (const auto& [first, count] : {std::pair{std::int64_t{0}, 2 * step::kTile},
                                     std::pair{2 * step::kTile, kElements - 2 * step::kTile}}) {
    parts.push_back(zero_unit(spec, unit_of({{count}}), std::ssize(parts)));
    at::Tensor(parts.back().gradients)
        .narrow(0, 0, count)
        .copy_(whole.gradients.narrow(0, first, count));
  }
  ops::AtenOps ops(at::kCPU);
  const double norm = step::joint_norm(ops, step::piece_norms(ops, std::vector{whole}));
  EXPECT_EQ(norm, step::joint_norm(ops, step::piece_norms(ops, parts)));
  EXPECT_NEAR(norm, std::sqrt(static_cast<double>(kElements)), 3);
  EXPECT_EQ(std::ssize(step::norm_ranges(whole.unit, 0, kElements)), 3);
}

// Of a unit that ranks divide: pieces that are cut between tiles have the ranges of the whole.
TEST(GradientNorm, RangesAreCutBetweenTilesAndWhereTheSpreadChanges) {
  spec::FlatUnit unit;
  std::int64_t offset = 0;
  for (const auto& [elements, parts] :
       {std::pair{step::kTile / 2, 1}, std::pair{2 * step::kTile, 2},
        std::pair{std::int64_t{64}, 1}}) {
    unit.parameters.push_back({.name = "w",
                               .shape = {elements},
                               .offset = offset,
                               .spread = {.parts = parts, .summed = false}});
    offset += elements;
  }
  unit.elements = offset;
  std::vector<spec::SpreadRange> cut;
  for (const std::int64_t first : {std::int64_t{0}, step::kTile}) {
    const std::int64_t count = first == 0 ? step::kTile : offset - step::kTile;
    for (const spec::SpreadRange& range : step::norm_ranges(unit, first, count))
      cut.push_back(range);
  }
  const std::vector<spec::SpreadRange> whole = step::norm_ranges(unit, 0, offset);
  ASSERT_EQ(whole.size(), 5U);
  ASSERT_EQ(cut.size(), whole.size());
  std::int64_t at = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].first, at);
    EXPECT_EQ(cut[i].first, at);
    EXPECT_EQ(cut[i].count, whole[i].count);
    EXPECT_EQ(whole[i].spread.parts, i == 0 || i == 4 ? 1 : 2);
    EXPECT_LE(whole[i].count, step::kTile);
    at += whole[i].count;
  }
  EXPECT_EQ(at, offset);
}

// ---- stochastic rounding ----

// Of bits drawn at random in [1, 2), a value between two neighbours.
TEST(StochasticRounding, IsUnbiased) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = 1 << 20;
  const at::Tensor noise = ops.rounding_noise(17, kN);
  const at::Tensor out = at::empty({kN}, at::kBFloat16);
  for (const double fraction : {0.0, 1.0 / 65536, 0.1, 0.25, 0.5, 0.9, 65535.0 / 65536}) {
    for (const double sign : {1.0, -1.0}) {
      const double low = 1.25;
      const double value = sign * (low + fraction * kBfloat16Step);
      ops.round_stochastically_(out, at::full({kN}, value, at::kFloat), noise, 5, 0);
      const at::Tensor up = out.to(at::kDouble).abs().ne(low);
      EXPECT_EQ(out.to(at::kDouble).abs().gt(low + kBfloat16Step).sum().item<std::int64_t>(), 0);
      const double share = up.to(at::kDouble).mean().item<double>();
      // Five standard deviations of a mean of kN draws.
      const double deviation = std::sqrt(fraction * (1 - fraction) / kN);
      EXPECT_NEAR(share, fraction, 5 * deviation + 1e-12) << value;
    }
  }
}

// Over steps, for one element: the numbers of different keys are as independent as those of one.
TEST(StochasticRounding, DrawsAnewInEveryStepForEveryElement) {
  constexpr int kSteps = 4096;
  constexpr std::int64_t kN = 64;
  ops::AtenOps ops(at::kCPU);
  const double fraction = 0.3;
  const at::Tensor value = at::full({kN}, 1 + fraction * kBfloat16Step, at::kFloat);
  at::Tensor ups = at::empty({kSteps, kN}, at::kDouble);
  for (int t = 0; t < kSteps; ++t) {
    const std::uint64_t key = random_key({1, static_cast<std::uint64_t>(t), 0});
    const at::Tensor out = at::empty({kN}, at::kBFloat16);
    ops.round_stochastically_(out, value, ops.rounding_noise(key, kN), random_key({key, 0}), 0);
    ups[t].copy_(out.to(at::kDouble).gt(1).to(at::kDouble));
  }
  const double deviation = std::sqrt(fraction * (1 - fraction) / kSteps);
  const at::Tensor means = ups.mean(0);
  EXPECT_LT((means - fraction).abs().max().item<double>(), 5 * deviation);
  // No two elements go together, and no two steps.
  const auto largest_correlation = [&](const at::Tensor& x) {
    const at::Tensor c = at::corrcoef(x);
    return (c - at::eye(c.size(0), c.options())).abs().max().item<double>();
  };
  EXPECT_LT(largest_correlation(ups.t()), 6 / std::sqrt(kSteps));
  EXPECT_LT(largest_correlation(ups.view({64, -1})), 6 / std::sqrt(kSteps * kN / 64));
}

TEST(StochasticRounding, OfAnElementDependsOnItsPlaceAlone) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = step::kNoise + 1000;  // into the second tile
  const at::Tensor noise = ops.rounding_noise(9, step::kNoise);
  const at::Tensor value = at::rand({kN}, at::kFloat);
  const at::Tensor whole = at::empty({kN}, at::kBFloat16);
  ops.round_stochastically_(whole, value, noise, 4, 0);
  const at::Tensor pieces = at::empty({kN}, at::kBFloat16);
  for (std::int64_t first = 0; first < kN; first += 999'983) {
    const std::int64_t n = std::min<std::int64_t>(999'983, kN - first);
    ops.round_stochastically_(pieces.narrow(0, first, n), value.narrow(0, first, n), noise, 4,
                              first);
  }
  EXPECT_TRUE(same_bits(whole, pieces));
}

// Elements that read the same number of the noise go together no more often than others, over keys.
TEST(StochasticRounding, TilesOfTheNoiseAreIndependent) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = 1000;
  constexpr std::uint64_t kKeys = 400;
  const double fraction = 0.3;
  const at::Tensor noise = ops.rounding_noise(9, kN);
  const at::Tensor value = at::full({kN}, 1 + fraction * kBfloat16Step, at::kFloat);
  double equal = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const at::Tensor first = at::empty({kN}, at::kBFloat16);
    const at::Tensor second = at::empty({kN}, at::kBFloat16);
    ops.round_stochastically_(first, value, noise, key, 0);
    ops.round_stochastically_(second, value, noise, key, step::kNoise);
    equal += first.eq(second).to(at::kDouble).mean().item<double>() / kKeys;
  }
  EXPECT_NEAR(equal, fraction * fraction + (1 - fraction) * (1 - fraction), 0.06);
}

TEST(StochasticRounding, OfAGpuHasTheSameBits) {
  ops::AtenOps ops(at::kCPU);
  constexpr std::int64_t kN = 100'003;
  const at::Tensor noise = ops.rounding_noise(123456789, kN);
  EXPECT_TRUE(noise.equal(ops::rounding_noise_by_operations(at::kCPU, 123456789, kN)));
  at::Tensor value = at::randn({kN}).mul_(at::randn({kN}).exp_());
  value[0] = 0;
  value[1] = std::numeric_limits<float>::infinity();
  value[2] = -1.5;  // a bfloat16
  const at::Tensor host = at::empty({kN}, at::kBFloat16);
  const at::Tensor gpu = at::empty({kN}, at::kBFloat16);
  ops::round_on_host(host, value, noise, 0x3a7b);
  ops::round_by_operations(gpu, value, noise, 0x3a7b);
  EXPECT_TRUE(same_bits(host, gpu));
  EXPECT_TRUE(same_bits(host.narrow(0, 0, 3), value.narrow(0, 0, 3).to(at::kBFloat16)));
}

// A step of 1/64 of bfloat16's spacing, 64 times: rounding to nearest would not move at all.
TEST(StochasticRounding, LetsBfloat16WeightsFollowSmallUpdates) {
  spec::OptimizerConfig config;
  config.kind = "sgd";
  config.weight_decay = 0;
  config.master_dtype = spec::Dtype::kBfloat16;
  const spec::OptimizerSpec spec = spec_of(config, Dtype::kBfloat16);
  constexpr std::int64_t kN = 4096;
  const OptimizerUnit unit = zero_unit(spec, unit_of({{kN}}));
  EXPECT_FALSE(unit.master().defined());
  at::Tensor(unit.weights).fill_(1.5);
  at::Tensor(unit.gradients).fill_(-1);
  Optimizer sgd(config, spec, 2, {unit}, alone());
  for (int i = 0; i < 64; ++i) make_step(sgd, kBfloat16Step / 64);
  const at::Tensor moved = unit.weights.to(at::kDouble) - 1.5;
  EXPECT_NEAR(moved.mean().item<double>() / kBfloat16Step, 1, 0.06);
  EXPECT_NEAR(moved.std().item<double>() / kBfloat16Step, 1, 0.1);
}

}  // namespace
}  // namespace neap::train
