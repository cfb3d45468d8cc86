// Gradients that leave a unit's memory for slices, against gradients that stay.
#include "step/units/gradient_slots.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bridge/no_autograd.h"
#include "spec/job/job.h"
#include "step/training/training.h"
#include "tiny_model.h"

namespace neap::ops {
namespace {

using at::Tensor;
using step::TrainedUnit;
using testing::TestModel;

constexpr std::int64_t kRows = 4, kLength = 7;

step::Experience<Tensor> experience(at::ScalarType dtype) {
  step::Experience<Tensor> e;
  step::Sequences<Tensor>& s = e.sequences;
  s.tokens = testing::tokens(kRows, kLength, 41);
  s.columns = at::arange(kLength - 1).repeat({kRows, 1});
  s.targets = testing::tokens(kRows, kLength - 1, 41, 5);
  s.mask = at::ones({kRows, kLength - 1}, dtype);
  s.last = at::full({kRows}, kLength - 1, at::kLong);
  s.lengths = at::full({kRows}, kLength, at::kLong);
  e.margins = at::zeros({kRows / 2}, dtype);
  return e;
}

// Groups of so many micro-batches of one row, or pair.
void train(TestModel& m, std::int64_t together) {
  const bridge::NoAutograd no_autograd;
  const step::Experience<Tensor> e = experience(m.weights[0].scalar_type());
  const bool pairs = m.head == spec::Head::kScalar;
  const std::int64_t rows = pairs ? kRows / 2 : kRows;
  for (std::int64_t first = 0; first < rows; first += together) {
    std::vector<step::MicroBatch> group;
    for (std::int64_t i = first; i < first + together; ++i) group.push_back({i, 1});
    const auto run = [&](const auto& objective) {
      (void)step::train_group(m.model->ops(), m.model->weights(), e, step::Group(group), objective,
                              {});
    };
    if (pairs) {
      run(step::PairObjective{0.01, 2});
    } else {
      run(step::CrossEntropyObjective{10});
    }
  }
}

// Gradients of pieces that rest elsewhere: in device memory there is room for one piece of each slot, whose contents are
// garbage until they were waited for and once they have left.
class Elsewhere final : public step::GradientSlots<AtenOps>::Hosted {
 public:
  struct Piece {
    std::string slot;
    Tensor rests;  // (count,)
  };
  std::vector<Piece> pieces;
  std::vector<std::size_t> completed;

  void fetch(std::size_t piece) override {
    EXPECT_FALSE(coming_.contains(pieces[piece].slot));
    coming_[pieces[piece].slot] = piece;
  }
  [[nodiscard]] Tensor use(std::size_t piece) override {
    const Piece& own = pieces[piece];
    Tensor& memory = memory_[piece];
    memory = at::full_like(own.rests, std::numeric_limits<double>::quiet_NaN());
    const auto coming = coming_.find(own.slot);
    if (coming == coming_.end()) return memory;
    EXPECT_EQ(coming->second, piece);
    coming_.erase(coming);
    return memory.copy_(own.rests);
  }
  void leave(std::size_t piece, bool complete) override {
    pieces[piece].rests.copy_(memory_[piece]);
    memory_[piece].fill_(std::numeric_limits<double>::quiet_NaN());
    if (complete) completed.push_back(piece);
  }

 private:
  std::map<std::string, std::size_t> coming_;
  std::map<std::size_t, Tensor> memory_;
};

// The same model, whose units share memory for their gradients, and slices of three ranks in one process.
struct Sliced {
  Sliced(const testing::Form& form, spec::Head head, std::optional<spec::LoraShape> lora,
         at::ScalarType dtype, bool elsewhere = false)
      : m(form.shape, head, lora, dtype) {
    const std::vector<spec::FlatUnit> units =
        lora ? spec::lora_layout(form.shape, head, *lora) : spec::flat_layout(form.shape, head);
    std::map<std::string, Tensor> memory;
    for (const spec::FlatUnit& unit : units) {
      Tensor& slot = memory[std::string(step::gradient_slot(unit, form.shape, head))];
      const std::int64_t before = slot.defined() ? slot.size(0) : 0;
      slot = at::full({std::max(before, unit.elements)}, std::numeric_limits<double>::quiet_NaN(),
                      dtype);
    }
    FlatTensors base{m.weights, {}};
    std::optional<Lora> adapters;
    if (lora) adapters = Lora{*lora, {m.adapter_weights, {}}};
    std::vector<Tensor>& views = lora ? adapters->adapters.grads : base.grads;
    const spec::StatePlacement placement({.kind = spec::OptimizerKind::kSgd}, units, {3, 2},
                                         spec::kParameterAlignment);
    std::vector<step::GradientSlots<AtenOps>::Unit> slots;
    for (const spec::FlatUnit& unit : units) {
      views.push_back(memory.at(std::string(step::gradient_slot(unit, form.shape, head)))
                          .narrow(0, 0, unit.elements));
      slots.push_back({unit, views.back()});
      slices.push_back(at::zeros({unit.elements}, dtype));
    }
    std::vector<TrainedUnit<Tensor>> pieces;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      for (const spec::Piece& piece : placement.pieces(rank)) {
        TrainedUnit<Tensor>& out = pieces.emplace_back();
        out.unit = units[piece.unit];
        out.index = 7 + static_cast<std::int64_t>(piece.unit);  // in a whole model with more
        out.first = piece.first;
        out.gradients = slices[piece.unit].narrow(0, piece.first, piece.count);
        if (!elsewhere) continue;
        // Ranks of one process have a slot each.
        hosted.pieces.push_back(
            {std::to_string(rank) + "." +
                 step::own_slot(step::gradient_slot(out.unit, form.shape, head)),
             out.gradients.fill_(7)});
      }
    }
    m.model.emplace(form.shape, head, base, adapters);
    // What is not waited for before memory is used again, or a group ends, is garbage.
    sink.emplace(m.model->ops(), slots, pieces, form.shape, head,
                 step::GradientSlots<AtenOps>::Sums{
                     [this](std::size_t unit, const Tensor& gradients) {
                       reduced[unit]++;
                       under_way.emplace_back(gradients, gradients.clone());
                       gradients.fill_(std::numeric_limits<double>::quiet_NaN());
                       return std::ssize(under_way) - 1;
                     },
                     [this](std::int64_t begun) {
                       auto& [gradients, sum] = under_way.at(static_cast<std::size_t>(begun));
                       gradients.copy_(sum);
                     }},
                 elsewhere ? &hosted : nullptr);
    m.model->send_gradients(&*sink);
  }
  TestModel m;
  std::vector<Tensor> slices;
  std::map<std::size_t, int> reduced;
  std::vector<std::pair<Tensor, Tensor>> under_way;  // gradients, and their sums
  Elsewhere hosted;
  std::optional<step::GradientSlots<AtenOps>> sink;
};

struct SlotCase {
  testing::Form form;
  spec::Head head = spec::Head::kLanguageModel;
  std::optional<spec::LoraShape> lora;
};

std::vector<SlotCase> cases() {
  std::vector<SlotCase> out;
  for (const testing::Form& form : testing::forms()) {
    for (const spec::Head head : {spec::Head::kLanguageModel, spec::Head::kScalar}) {
      out.push_back({form, head, std::nullopt});
      out.push_back({form, head, spec::LoraShape{2, {"all-linear"}}});
    }
  }
  return out;
}

TEST(GradientSlots, OneGroupGivesTheSameBitsAndSeveralTheSameSums) {
  for (const SlotCase& each : cases()) {
    SCOPED_TRACE(each.form.name + (each.head == spec::Head::kScalar ? ", scalar" : "") +
                 (each.lora ? ", adapters" : ""));
    for (const std::int64_t together : {1, 2, 4}) {
      const std::int64_t all = each.head == spec::Head::kScalar ? 2 : 4;
      if (together > all) continue;
      const at::ScalarType dtype = together == all ? at::kFloat : at::kDouble;
      TestModel whole(each.form.shape, each.head, each.lora, dtype);
      train(whole, all);
      Sliced sliced(each.form, each.head, each.lora, dtype);
      train(sliced.m, together);
      const std::vector<Tensor> expected = whole.copy_grads();
      ASSERT_EQ(expected.size(), sliced.slices.size());
      for (std::size_t u = 0; u < expected.size(); ++u) {
        EXPECT_EQ(sliced.reduced[u], all / together) << "unit " << u;
        EXPECT_GT(expected[u].abs().max().item<double>(), 0) << "unit " << u;
        if (together == all) {
          EXPECT_TRUE(at::equal(expected[u], sliced.slices[u])) << "unit " << u;
        } else {
          EXPECT_TRUE(at::allclose(expected[u], sliced.slices[u], 1e-10, 1e-12)) << "unit " << u;
        }
      }
    }
  }
}

TEST(GradientSlots, PiecesThatRestElsewhereHaveTheSameBits) {
  for (const SlotCase& each : cases()) {
    SCOPED_TRACE(each.form.name + (each.head == spec::Head::kScalar ? ", scalar" : "") +
                 (each.lora ? ", adapters" : ""));
    const std::int64_t all = each.head == spec::Head::kScalar ? 2 : 4;
    for (std::int64_t together = 1; together <= all; together *= 2) {
      Sliced there(each.form, each.head, each.lora, at::kFloat);
      train(there.m, together);
      Sliced elsewhere(each.form, each.head, each.lora, at::kFloat, true);
      // The second mini-batch begins anew.
      for (int mini_batch = 0; mini_batch < 2; ++mini_batch) {
        elsewhere.sink->begin_mini_batch(all / together);
        train(elsewhere.m, together);
      }
      for (std::size_t u = 0; u < there.slices.size(); ++u)
        EXPECT_TRUE(at::equal(there.slices[u], elsewhere.slices[u])) << "unit " << u;
      EXPECT_EQ(elsewhere.hosted.completed.size(), 2 * elsewhere.hosted.pieces.size());
    }
  }
}

}  // namespace
}  // namespace neap::ops
