#include "ops/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "tiny_model.h"
#include "unit/ops/passes.h"

namespace neap::ops {
namespace {

using at::Tensor;
using testing::Form;
using testing::forms;
using testing::largest_difference;
using testing::TestModel;
using testing::tiny_llama;
using testing::tokens;

class EveryForm : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Blocks, EveryForm, ::testing::ValuesIn(forms()),
                         [](const auto& i) { return i.param.name; });

// Loss = sum of weighted log-probs, through tape and head; returns the loss.
double loss_and_grads(TestModel& m, const Tensor& batch, const Tensor& targets,
                      const Tensor& weights, const spec::Checkpointing& keep) {
  auto tape = forward_train(*m.model, batch, keep);
  const auto out = cross_entropy(*m.model, tape.hidden, {}, targets, weights);
  backward(*m.model, std::move(tape), out.d_hidden);
  return -(out.values.log_probs.to(at::kDouble) * weights).sum().item<double>();
}

double loss_only(TestModel& m, const Tensor& batch, const Tensor& targets, const Tensor& weights) {
  const Tensor hidden = forward(*m.model, batch);
  return -(log_probs(*m.model, hidden, {}, targets).log_probs.to(at::kDouble) * weights)
              .sum()
              .item<double>();
}

TEST_P(EveryForm, RecomputationGivesTheSameBits) {
  TestModel m(GetParam().shape, spec::Head::kLanguageModel, std::nullopt, at::kFloat);
  const Tensor batch = tokens(3, 9, 41);
  const Tensor targets = tokens(1, 27, 41, 5).view(-1);
  const Tensor weights = at::linspace(0.1, 1, 27, at::kFloat);
  const double kept = loss_and_grads(m, batch, targets, weights, {});
  const auto expected = m.copy_grads();
  m.zero_grads();
  const double again = loss_and_grads(m, batch, targets, weights, testing::recompute(*m.model));
  EXPECT_EQ(kept, again);
  const auto actual = m.copy_grads();
  for (std::size_t u = 0; u < expected.size(); ++u) {
    EXPECT_TRUE(at::equal(expected[u], actual[u])) << "unit " << u;
    EXPECT_GT(expected[u].abs().max().item<double>(), 0) << "unit " << u;
  }
}

TEST_P(EveryForm, GradientsAgreeWithFiniteDifferences) {
  TestModel m(GetParam().shape);
  const Tensor batch = tokens(2, 6, 41);
  const Tensor targets = tokens(1, 12, 41, 3).view(-1);
  const Tensor weights = at::linspace(-1, 1.3, 12, at::kDouble);
  (void)loss_and_grads(m, batch, targets, weights, testing::recompute(*m.model));
  for (const auto& p : m.model->parameters()) {
    // Along a fixed direction, so that a parameter costs two passes.
    const Tensor direction =
        at::arange(p.weight.numel(), at::kDouble).mul_(1.7).cos_().view(p.weight.sizes());
    const double step = 1e-4 / direction.norm().item<double>();
    const Tensor original = p.weight.clone();
    const auto at_step = [&](double k) {
      Tensor(p.weight).copy_(original + direction * (k * step));
      return loss_only(m, batch, targets, weights);
    };
    const double numeric = (at_step(1) - at_step(-1)) / (2 * step);
    Tensor(p.weight).copy_(original);
    const double analytic = (p.grad * direction).sum().item<double>();
    EXPECT_NEAR(analytic, numeric, 1e-6 * (1 + std::abs(numeric))) << p.name;
  }
}

TEST_P(EveryForm, DecodingWithCacheEqualsWholeForward) {
  TestModel m(GetParam().shape);
  const std::int64_t total = 12;
  const Tensor sequences = tokens(3, total, 41);
  const std::vector<std::int64_t> prompt{5, 2, 7};
  const Tensor lengths = at::tensor(prompt, at::kLong);
  const std::int64_t longest = 7;
  const Tensor whole = forward(*m.model, sequences).view({3, total, -1});

  const Tensor storage = at::full({KvCache::elements(m.shape, 3, 16)}, 1e3, at::kDouble);
  KvCache cache = KvCache::over(storage, m.shape, 3, 16);
  Tensor hidden = prefill(*m.model, sequences.narrow(1, 0, longest), lengths, cache);
  for (std::int64_t b = 0; b < 3; ++b) {
    EXPECT_LT(largest_difference(hidden[b], whole[b][prompt[static_cast<std::size_t>(b)] - 1]),
              1e-10);
  }
  Tensor positions = lengths.clone();
  for (std::int64_t step = 0; step < total - longest; ++step) {
    const Tensor next = sequences.gather(1, positions.unsqueeze(1)).squeeze(1);
    hidden = decode(*m.model, next, positions, cache, positions.max().item<std::int64_t>() + 1);
    for (std::int64_t b = 0; b < 3; ++b) {
      EXPECT_LT(largest_difference(hidden[b], whole[b][positions[b].item<std::int64_t>()]), 1e-10)
          << "sequence " << b << " step " << step;
    }
    positions.add_(1);
  }
}

TEST_P(EveryForm, PrefillIntoSlotsLeavesOtherSequencesAlone) {
  TestModel m(GetParam().shape);
  const Tensor storage = at::full({KvCache::elements(m.shape, 4, 10)}, 5.0, at::kDouble);
  KvCache cache = KvCache::over(storage, m.shape, 4, 10);
  const Tensor prompt = tokens(2, 6, 41);
  (void)prefill(*m.model, prompt, at::tensor({6, 4}, at::kLong), cache,
                at::tensor({3, 1}, at::kLong));
  EXPECT_TRUE((cache.keys[0][0] == 5.0).all().item<bool>());
  EXPECT_TRUE((cache.values[2][2] == 5.0).all().item<bool>());
  KvCache direct = KvCache::over(at::zeros_like(storage), m.shape, 4, 10);
  (void)prefill(*m.model, prompt, at::tensor({6, 4}, at::kLong), direct);
  EXPECT_TRUE(at::equal(cache.keys[1][3].narrow(1, 0, 6), direct.keys[1][0].narrow(1, 0, 6)));
  EXPECT_TRUE(at::equal(cache.values[1][1].narrow(1, 0, 6), direct.values[1][1].narrow(1, 0, 6)));
}

TEST_P(EveryForm, PaddingDoesNotReachTheTokensBeforeIt) {
  TestModel m(GetParam().shape);
  const Tensor rows = tokens(2, 8, 41);
  const Tensor padded = forward(*m.model, rows).view({2, 8, -1});
  Tensor other = rows.clone();
  other[0].narrow(0, 5, 3).fill_(1);  // padding of another kind
  const Tensor otherwise = forward(*m.model, other).view({2, 8, -1});
  EXPECT_LT(largest_difference(padded[0].narrow(0, 0, 5), otherwise[0].narrow(0, 0, 5)), 1e-12);
  EXPECT_GT(largest_difference(padded[0].narrow(0, 5, 3), otherwise[0].narrow(0, 5, 3)), 1e-6);
}

class LoraOn : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Blocks, LoraOn, ::testing::ValuesIn(forms()),
                         [](const auto& i) { return i.param.name; });

TEST_P(LoraOn, AdapterGradientsAgreeWithFiniteDifferences) {
  TestModel m(GetParam().shape, spec::Head::kLanguageModel, spec::LoraShape{2, {"all-linear"}, 8});
  const Tensor batch = tokens(2, 5, 41);
  const Tensor targets = tokens(1, 10, 41, 3).view(-1);
  const Tensor weights = at::linspace(-1, 1.3, 10, at::kDouble);
  (void)loss_and_grads(m, batch, targets, weights, testing::recompute(*m.model));
  for (const auto& p : m.model->adapters()) {
    const Tensor direction =
        at::arange(p.weight.numel(), at::kDouble).mul_(1.7).cos_().view(p.weight.sizes());
    const double step = 1e-4 / direction.norm().item<double>();
    const Tensor original = p.weight.clone();
    const auto at_step = [&](double k) {
      Tensor(p.weight).copy_(original + direction * (k * step));
      return loss_only(m, batch, targets, weights);
    };
    const double numeric = (at_step(1) - at_step(-1)) / (2 * step);
    Tensor(p.weight).copy_(original);
    EXPECT_NEAR((p.grad * direction).sum().item<double>(), numeric, 1e-6 * (1 + std::abs(numeric)))
        << p.name;
  }
}

TEST(TransformerWalk, GradientsAddUpOverMicroBatches) {
  TestModel m(tiny_llama());
  const Tensor batch = tokens(2, 6, 41);
  const Tensor targets = tokens(1, 12, 41, 4).view(-1);
  const Tensor weights = at::ones({12}, at::kDouble);
  (void)loss_and_grads(m, batch, targets, weights, {});
  const auto once = m.copy_grads();
  (void)loss_and_grads(m, batch, targets, weights, {});
  const auto twice = m.copy_grads();
  for (std::size_t u = 0; u < once.size(); ++u)
    EXPECT_LT(largest_difference(once[u] * 2, twice[u]), 1e-9);
}

TEST(TransformerWalk, WiderGradientsTakeSumsOfNarrowWeights) {
  const spec::Architecture shape = tiny_llama();
  TestModel m(shape, spec::Head::kLanguageModel, std::nullopt, at::kBFloat16);
  std::vector<Tensor> wide;
  for (const auto& g : m.grads) wide.push_back(at::zeros_like(g, at::kFloat));
  Transformer model(shape, spec::Head::kLanguageModel, {m.weights, wide});
  const Tensor batch = tokens(2, 6, 41);
  const Tensor targets = tokens(1, 12, 41, 4).view(-1);
  const Tensor weights = at::ones({12}, at::kFloat);
  (void)loss_and_grads(m, batch, targets, weights, {});
  auto tape = forward_train(model, batch, testing::recompute(model));
  const Tensor d_hidden = cross_entropy(model, tape.hidden, {}, targets, weights).d_hidden;
  backward(model, std::move(tape), d_hidden);
  for (std::size_t u = 0; u < wide.size(); ++u) {
    const double size = wide[u].abs().max().item<double>();
    EXPECT_LT(largest_difference(wide[u], m.grads[u].to(at::kFloat)), 0.03 * size) << "unit " << u;
  }
}

TEST(TransformerErrors, NameTheObjectAndTheLimit) {
  using ::testing::HasSubstr;
  using ::testing::Property;
  using ::testing::ThrowsMessage;
  TestModel m(tiny_llama());
  std::vector<Tensor> cut = m.weights;
  cut[1] = at::zeros({10});
  EXPECT_THAT(
      [&] {
        Transformer(m.shape, m.head, {cut, {}});
      },
      ThrowsMessage<Error>(HasSubstr("\"block.0\"")));
}

}  // namespace
}  // namespace neap::ops
