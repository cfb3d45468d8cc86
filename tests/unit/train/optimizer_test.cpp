#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "random_units.h"
#include "step/units/gradient_norm.h"
#include "step/units/update_parts.h"
#include "unit_with_state.h"

namespace neap::train {
namespace {

using spec::Dtype;
using testing::spec_of;
using testing::unit_of;
using testing::zero_unit;

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

}  // namespace
}  // namespace neap::train
