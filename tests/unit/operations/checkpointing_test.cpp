// Random models: losses and gradients have the same bits whatever the blocks keep.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

#include "bridge/no_autograd.h"
#include "ops/transformer.h"
#include "plan/counting/counted_backend.h"
#include "random_job.h"
#include "unit/ops/passes.h"

namespace neap {
namespace {

using at::Tensor;
using testing::Dice;

// Tensors this small only wait for one another.
const bool kOneThread = (at::set_num_threads(1), true);

std::vector<Tensor> flat(const std::vector<spec::FlatUnit>& units, at::ScalarType dtype,
                         double size) {
  std::vector<Tensor> out;
  out.reserve(units.size());
  for (const spec::FlatUnit& unit : units)
    out.push_back(at::rand({unit.elements}, at::kDouble).sub_(0.4).mul_(size).to(dtype));
  return out;
}

// A model with storage of its own and what one training pass gives.
class Subject {
 public:
  Subject(const plan::ModelRole& role, at::ScalarType dtype)
      : role_(role), wide_(dtype == at::kDouble ? at::kDouble : at::kFloat) {
    ops::FlatTensors base{flat(spec::flat_layout(role.shape, role.head), dtype, 0.3), {}};
    grads_ = flat(plan::trained_units(role), wide_, 0);
    std::optional<ops::Lora> lora;
    if (role.lora.rank > 0) {
      lora = ops::Lora{
          role.lora,
          {flat(spec::lora_layout(role.shape, role.head, role.lora), dtype, 0.3), grads_}};
    } else {
      base.grads = grads_;
    }
    model_ = std::make_unique<ops::Transformer>(role.shape, role.head, base, lora);
  }

  // Loss first, then the gradients.
  std::vector<Tensor> train(const spec::Checkpointing& checkpointing, const Tensor& batch) {
    for (Tensor& g : grads_) g.zero_();
    auto tape = forward_train(*model_, batch, checkpointing);
    const Tensor weights = at::linspace(0.1, 1, batch.numel(), wide_);
    const auto out = cross_entropy(*model_, tape.hidden, {}, batch.view(-1), weights);
    backward(*model_, std::move(tape), out.d_hidden);
    std::vector<Tensor> result{out.values.log_probs};
    for (const Tensor& g : grads_) result.push_back(g.clone());
    return result;
  }

 private:
  plan::ModelRole role_;
  at::ScalarType wide_;
  std::vector<Tensor> grads_;
  std::unique_ptr<ops::Transformer> model_;
};

TEST(Checkpointing, EveryRetentionOfRandomModelsGivesTheSameBits) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    at::manual_seed(seed);
    const bridge::NoAutograd no_autograd;
    const plan::ModelRole role = testing::random_role(
        dice, spec::ModelId::kActor, spec::Head::kLanguageModel, true, step::Dtype::kFloat32);
    Subject subject(role, dice.one_of({at::kFloat, at::kBFloat16, at::kDouble}));
    const Tensor batch =
        at::randint(role.shape.vocab_size, {dice.between(1, 4), dice.between(1, 20)}, at::kLong);
    const auto expected =
        subject.train(spec::checkpointing(spec::CheckpointMode::kNone, role.shape), batch);
    for (std::size_t unit = 1; unit < expected.size(); ++unit)
      ASSERT_TRUE(at::isfinite(expected[unit]).all().item<bool>()) << "unit " << unit;
    ASSERT_GT(expected.back().abs().max().item<double>(), 0);
    for (int policy = 0; policy < 5; ++policy) {
      SCOPED_TRACE("policy " + std::to_string(policy));
      const spec::Checkpointing checkpointing =
          policy == 0   ? spec::checkpointing(spec::CheckpointMode::kSelective, role.shape)
          : policy == 1 ? spec::checkpointing(spec::CheckpointMode::kFull, role.shape)
                        : testing::random_checkpointing(dice, role.shape);
      const auto actual = subject.train(checkpointing, batch);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_TRUE(at::equal(expected[i], actual[i])) << (i == 0 ? "loss" : "gradients") << i;
    }
  }
}

}  // namespace
}  // namespace neap
