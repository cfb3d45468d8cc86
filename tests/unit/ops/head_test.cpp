#include <gtest/gtest.h>

#include "ops/transformer.h"
#include "tiny_model.h"
#include "unit/ops/passes.h"

namespace neap::ops {
namespace {

using at::Tensor;
using testing::largest_difference;
using testing::TestModel;
using testing::tiny_llama;
using testing::tokens;

// Reference: whole logits by torch's own functions, gradients by its autograd.
struct Reference {
  Tensor log_probs, entropy;
  Reference(TestModel& m, const Tensor& hidden, const Tensor& rows, const Tensor& targets,
            double temperature) {
    const Tensor log_p = at::log_softmax(
        logits(*m.model, hidden.index_select(0, rows)).to(at::kDouble) / temperature, -1);
    log_probs = log_p.gather(1, targets.unsqueeze(1)).squeeze(1);
    entropy = -(log_p.exp() * log_p).sum(1);
  }
};

struct Problem {
  TestModel m{tiny_llama()};
  Tensor hidden = at::arange(13 * 24, at::kDouble).mul_(0.77).sin_().view({13, 24});
  Tensor rows = at::tensor({2, 5, 11, 0, 7}, at::kLong);
  Tensor targets = at::tensor({1, 40, 3, 0, 22}, at::kLong);
};

TEST(Head, ChunksGiveWhatTheWholeGives) {
  Problem p;
  const Reference reference(p.m, p.hidden, p.rows, p.targets, 0.7);
  for (const std::int64_t rows_a_chunk : {1, 2, 100}) {
    const LogProbOptions options{
        .temperature = 0.7, .entropy = true, .chunk_elements = rows_a_chunk * 41};
    const LogProbs out = log_probs(*p.m.model, p.hidden, p.rows, p.targets, options);
    EXPECT_LT(largest_difference(out.log_probs, reference.log_probs), 1e-5);
    EXPECT_LT(largest_difference(out.entropy, reference.entropy), 1e-5);
  }
}

TEST(Head, BackwardAgreesWithFiniteDifferencesThroughEntropyAndTemperature) {
  Problem p;
  const LogProbOptions options{.temperature = 1.3, .entropy = true, .chunk_elements = 82};
  const Tensor d_log_prob = at::tensor({0.3, -1.0, 0.5, 2.0, 1.0}, at::kDouble);
  const Tensor d_entropy = at::tensor({-0.5, 0.2, 1.0, 0.1, 0.4}, at::kDouble);
  const LogProbs out = log_probs(*p.m.model, p.hidden, p.rows, p.targets, options);
  const Tensor d_hidden = log_probs_backward(*p.m.model, p.hidden, p.rows, p.targets, out,
                                             d_log_prob, d_entropy, options);
  const auto loss = [&](const Tensor& hidden) {
    const Reference r(p.m, hidden, p.rows, p.targets, 1.3);
    return (r.log_probs * d_log_prob + r.entropy * d_entropy).sum().item<double>();
  };
  const Tensor direction = at::arange(13 * 24, at::kDouble).cos_().view({13, 24});
  const double step = 1e-5;
  const double numeric =
      (loss(p.hidden + direction * step) - loss(p.hidden - direction * step)) / (2 * step);
  EXPECT_NEAR((d_hidden * direction).sum().item<double>(), numeric, 1e-5 * std::abs(numeric));
  EXPECT_EQ(d_hidden[1].abs().max().item<double>(), 0) << "a row that the head did not read";

  for (const auto& parameter : p.m.model->parameters()) {
    if (parameter.name != "lm_head.weight" && parameter.name != "model.norm.weight") continue;
    const Tensor along =
        at::arange(parameter.weight.numel(), at::kDouble).cos_().view(parameter.weight.sizes());
    const Tensor original = parameter.weight.clone();
    const auto shifted = [&](double k) {
      Tensor(parameter.weight).copy_(original + along * k);
      return loss(p.hidden);
    };
    const double expected = (shifted(step) - shifted(-step)) / (2 * step);
    Tensor(parameter.weight).copy_(original);
    EXPECT_NEAR((parameter.grad * along).sum().item<double>(), expected, 1e-5 * std::abs(expected))
        << parameter.name;
  }
}

TEST(Head, OnePassEqualsTwo) {
  Problem p;
  const Tensor weights = at::tensor({0.3, 0.0, 0.5, 2.0, 1.0}, at::kDouble);
  const LogProbs out = log_probs(*p.m.model, p.hidden, p.rows, p.targets);
  const Tensor two = log_probs_backward(*p.m.model, p.hidden, p.rows, p.targets, out, -weights);
  const auto grads = p.m.copy_grads();
  p.m.zero_grads();
  const auto one = cross_entropy(*p.m.model, p.hidden, p.rows, p.targets, weights);
  EXPECT_LT(largest_difference(one.values.log_probs, out.log_probs), 1e-6);
  EXPECT_LT(largest_difference(one.d_hidden, two), 1e-6);
  EXPECT_LT(largest_difference(p.m.grads.back(), grads.back()), 1e-6);
}

TEST(Head, LargeLogitsStayFinite) {
  Problem p;
  const LogProbOptions options{.temperature = 1e-4, .entropy = true};
  const LogProbs out = log_probs(*p.m.model, p.hidden, p.rows, p.targets, options);
  EXPECT_TRUE(out.log_probs.isfinite().all().item<bool>());
  EXPECT_TRUE(out.entropy.isfinite().all().item<bool>());
  EXPECT_TRUE((out.log_probs <= 0).all().item<bool>());
}

TEST(ScalarHead, ScoresAndTheirGradients) {
  TestModel m(tiny_llama(), spec::Head::kScalar);
  const Tensor batch = tokens(2, 5, 41);
  const Tensor rows = at::tensor({4, 7, 9}, at::kLong);
  const Tensor d = at::tensor({1.0, -0.5, 0.25}, at::kDouble);
  const auto loss = [&] {
    return (scores(*m.model, forward(*m.model, batch), rows).to(at::kDouble) * d)
        .sum()
        .item<double>();
  };
  auto tape = forward_train(*m.model, batch, testing::recompute(*m.model));
  const Tensor d_hidden = scores_backward(*m.model, tape.hidden, rows, d);
  backward(*m.model, std::move(tape), d_hidden);
  for (const auto& p : m.model->parameters()) {
    const Tensor along =
        at::arange(p.weight.numel(), at::kDouble).mul_(1.7).cos_().view(p.weight.sizes());
    const double step = 1e-4 / along.norm().item<double>();
    const Tensor original = p.weight.clone();
    const auto shifted = [&](double k) {
      Tensor(p.weight).copy_(original + along * (k * step));
      return loss();
    };
    const double numeric = (shifted(1) - shifted(-1)) / (2 * step);
    Tensor(p.weight).copy_(original);
    EXPECT_NEAR((p.grad * along).sum().item<double>(), numeric, 1e-6 * (1 + std::abs(numeric)))
        << p.name;
  }
}

TEST(ScalarHead, IsTrainedBesideAdapters) {
  TestModel m(tiny_llama(), spec::Head::kScalar, spec::LoraShape{2, {"q_proj"}});
  auto tape = forward_train(*m.model, tokens(1, 4, 41));
  const Tensor d_hidden = scores_backward(*m.model, tape.hidden, {}, at::ones({4}, at::kDouble));
  backward(*m.model, std::move(tape), d_hidden);
  ASSERT_EQ(m.model->adapters().back().name, "base_model.model.score.weight");
  EXPECT_GT(m.model->adapters().back().grad.abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace neap::ops
