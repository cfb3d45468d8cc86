// Packed micro-batches against padded ones: the same losses, gradients and outputs.
#include "train/packed_batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "bridge/no_autograd.h"
#include "spec/types/loss_kinds.h"
#include "step/pipeline/phases.h"
#include "step/training/training.h"
#include "unit/ops/tiny_model.h"
#include "unit/step/train_micro_batch.h"

namespace neap::train {
namespace {

using ops::testing::Form;
using ops::testing::TestModel;

constexpr std::int64_t kRows = 12, kWidth = 20, kResponse = 13, kVocabulary = 41, kBudget = 50;

// Rows of every length, the longest and the shortest included.
Sequences rows_of(std::int64_t rows, at::ScalarType dtype, bool masked = true) {
  std::vector<Tokens> prompts, responses;
  std::vector<TokenMask> masks;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t prompt = i == 0 ? kWidth - kResponse : 1 + i * 5 % 7;
    const std::int64_t response = i == 0 ? kResponse : 1 + i * 7 % kResponse;
    Tokens& p = prompts.emplace_back();
    Tokens& r = responses.emplace_back();
    TokenMask& m = masks.emplace_back();
    for (std::int64_t t = 0; t < prompt; ++t) p.push_back((i * 31 + t * 7) % kVocabulary);
    for (std::int64_t t = 0; t < response; ++t) {
      r.push_back((i * 17 + t * 11 + 3) % kVocabulary);
      // Of some responses a part is trained on, of one nothing.
      m.push_back(!masked || (i != 3 && (i % 4 != 1 || t % 3 != 0 || t == 1)));
    }
  }
  Sequences out = make_sequences(prompts, responses, {kWidth, kResponse, 0}, masks);
  out.mask = out.mask.to(dtype);
  return out;
}

spec::Batching packed(std::int64_t rows, std::int64_t of_row = 1) {
  return {4, kBudget * of_row, of_row, rows};
}
spec::Batching padded(std::int64_t rows, std::int64_t of_row = 1) {
  return {4 / of_row, 0, of_row, rows};
}

// Values per token that nothing is special about.
at::Tensor values(std::int64_t salt, at::ScalarType dtype) {
  return at::arange(kRows * kResponse, dtype).add_(salt).mul_(0.61).sin_().view({kRows, kResponse});
}

// Means of micro-batches, which differ in their tokens, add up to the mean of all where each is taken
// by its share. What they were divided by has a small number added.
constexpr std::int64_t kTokens = 40;
double share_of(double tokens) {
  return (tokens + 1e-8) / static_cast<double>(kTokens);
}

// Of gradients; numbers hold means, which are divided by their tokens + 1e-8.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : 2e-6;
}
double number_tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-9 : 1e-6;
}

// Runs `work`, which adds to the gradients and returns numbers, over both forms of the batch.
template <class Work>
void expect_equal(TestModel& model, const Sequences& batch, std::int64_t of_row,
                  std::int64_t mini_batches, const Work& work) {
  const bridge::NoAutograd no_autograd;
  const double close = tolerance(model.weights[0].scalar_type());
  const double near = number_tolerance(model.weights[0].scalar_type());
  const std::int64_t rows = batch.size() / of_row / mini_batches;
  std::vector<double> wanted;
  std::vector<at::Tensor> gradients;
  for (const spec::Batching& batching : {padded(rows, of_row), packed(rows, of_row)}) {
    const ArrangedBatch arranged = arrange(batch, batching, Use::kTraining, mini_batches);
    ASSERT_EQ(arranged.sequences.packed.has_value(), batching.tokens > 0);
    model.zero_grads();
    const std::vector<double> got = work(arranged);
    if (gradients.empty()) {
      wanted = got;
      gradients = model.copy_grads();
      continue;
    }
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], wanted[i], near * std::max(1.0, std::abs(wanted[i]))) << i;
    const std::vector<at::Tensor> now = model.copy_grads();
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double largest = std::max(1.0, gradients[i].abs().max().item<double>());
      EXPECT_LT((now[i] - gradients[i]).abs().max().item<double>(), close * largest)
          << "unit " << i;
      EXPECT_GT(gradients[i].abs().max().item<double>(), 0) << "unit " << i;
    }
  }
}

// The micro-batches of an update, with the sums of their numbers.
template <class Micro>
std::vector<double> sum_over(const spec::UpdateShape& shape, const Sequences& batch,
                             const Micro& micro) {
  std::vector<double> sums;
  for (const std::vector<step::MicroBatch>& cuts : step::update_cuts(shape, batch)) {
    for (const step::MicroBatch& m : cuts) {
      const std::vector<double> numbers = micro(m.first, m.count);
      sums.resize(numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) sums[i] += numbers[i];
    }
  }
  return sums;
}

// Of a micro-batch, by name.
double number(const step::LossNumbers& all, const std::string& name) {
  for (const step::LossNumber& n : all)
    if (n.name == name) return n.value;
  ADD_FAILURE() << name;
  return 0;
}
// The elements that a mean is taken over.
double weight(const step::LossNumbers& all, const std::string& name) {
  for (const step::LossNumber& n : all)
    if (n.name == name) return n.weight.value();
  ADD_FAILURE() << name;
  return 0;
}
step::Experience<at::Tensor> with_sequences(const Sequences& sequences) {
  step::Experience<at::Tensor> out;
  out.sequences = sequences;
  return out;
}

class PackedForms : public ::testing::TestWithParam<Form> {};

TEST_P(PackedForms, CrossEntropy) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    TestModel model(GetParam().shape, spec::Head::kLanguageModel, std::nullopt, dtype);
    const auto keep = spec::checkpointing(spec::CheckpointMode::kSelective, model.shape);
    expect_equal(model, rows_of(kRows, dtype), 1, 1, [&](const ArrangedBatch& b) {
      return sum_over({1, kRows, kRows, 4}, b.sequences, [&](auto first, auto count) {
        const auto s = step::train_micro_batch(model.model->ops(), model.model->weights(),
                                               with_sequences(b.sequences), first, count,
                                               step::CrossEntropyObjective{37}, keep);
        return std::vector<double>{number(s, "train/loss"), number(s, "train/mean_token_accuracy")};
      });
    });
  }
}

TEST_P(PackedForms, LogProbabilitiesAndScores) {
  const bridge::NoAutograd no_autograd;
  const Sequences batch = rows_of(kRows, at::kDouble);
  for (const spec::Head head : {spec::Head::kLanguageModel, spec::Head::kScalar}) {
    TestModel model(GetParam().shape, head);
    const auto run = [&](const spec::Batching& batching, bool every_token) {
      const ArrangedBatch b = arrange(batch, batching, Use::kScoring);
      std::vector<at::Tensor> parts;
      const auto& w = model.model->weights();
      if (head == spec::Head::kScalar) {
        step::score_phase(
            model.model->ops(), w, b.sequences, {batching.rows}, every_token,
            [&](const step::MicroBatch&, const at::Tensor& s) { parts.push_back(s); });
      } else {
        step::LogProbOptions options;
        options.entropy = true;
        step::log_prob_phase(
            model.model->ops(), w, b.sequences, {batching.rows}, options,
            [&](const step::MicroBatch&, const step::LogProbs<at::Tensor>& values) {
              parts.push_back(at::cat({values.log_probs, values.entropy}, 1));
            });
      }
      return b.restored(at::cat(parts));
    };
    for (const bool every_token : {true, false}) {
      const at::Tensor mask = head == spec::Head::kScalar
                                  ? (every_token ? batch.mask : at::ones({kRows}, at::kDouble))
                                  : at::cat({batch.mask, batch.mask}, 1);
      const at::Tensor want = run(padded(kRows), every_token) * mask;
      const at::Tensor got = run(packed(kRows), every_token);
      EXPECT_LT((got * mask - want).abs().max().item<double>(), 1e-12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PackedForms, ::testing::ValuesIn(ops::testing::forms()),
                         [](const auto& test) { return test.param.name; });

// Every loss and aggregation, two mini-batches whose rows do not mix.
TEST(PackedUpdates, OfThePolicy) {
  using spec::LossAggregation;
  const auto all = spec::loss_aggregation_names();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    TestModel model(ops::testing::tiny_llama(), spec::Head::kLanguageModel, std::nullopt, dtype);
    const Sequences batch = rows_of(kRows, dtype);
    for (const std::string& loss : spec::policy_loss_names()) {
      for (const std::string& aggregation : all) {
        SCOPED_TRACE(testing::Message() << loss << " " << aggregation);
        spec::ActorConfig config;
        config.loss_mode = *spec::parse_policy_loss(loss);
        // These two choose among the tokens of a micro-batch.
        if (config.loss_mode == spec::PolicyLoss::kClipCov ||
            config.loss_mode == spec::PolicyLoss::kKlCov)
          continue;
        config.loss_agg_mode = *spec::parse_loss_aggregation(aggregation);
        config.use_kl_loss = true;
        config.entropy_coeff = 0.01;
        step::PolicyObjective objective{config, {kTokens, 6, 13}};
        objective.options.entropy = true;
        objective.options.temperature = 0.7;
        const auto keep = spec::checkpointing(spec::CheckpointMode::kNone, model.shape);
        expect_equal(model, batch, 1, 2, [&](const ArrangedBatch& b) {
          step::Experience<at::Tensor> e;
          e.sequences = b.sequences;
          e.old_log_probs = b.arranged(values(1, dtype) - 3);
          e.ref_log_probs = b.arranged(values(2, dtype) - 3);
          e.advantages = b.arranged(values(3, dtype));
          e.rollout_weights = b.arranged(values(4, dtype).add(2));
          return sum_over({1, kRows, kRows / 2, 2}, b.sequences, [&](auto first, auto count) {
            const auto s = step::train_micro_batch(model.model->ops(), model.model->weights(), e,
                                                   first, count, objective, keep);
            const double tokens = weight(s, "actor/ppo_kl"), share = share_of(tokens);
            return std::vector<double>{number(s, "actor/pg_loss"), number(s, "actor/kl_loss"),
                                       tokens, number(s, "actor/pg_clipfrac") * share,
                                       number(s, "actor/ppo_kl") * share};
          });
        });
      }
    }
  }
}

// Weights of the rollout that are all the same number scale the gradient by it.
TEST(PolicyUpdate, BypassModeWeighsTheLoss) {
  const bridge::NoAutograd no_autograd;
  TestModel model(ops::testing::tiny_llama(), spec::Head::kLanguageModel, std::nullopt,
                  at::kDouble);
  step::Experience<at::Tensor> e;
  e.sequences = arrange(rows_of(kRows, at::kDouble), padded(kRows), Use::kTraining, 1).sequences;
  e.old_log_probs = values(1, at::kDouble) - 3;
  e.advantages = values(3, at::kDouble);
  const auto gradients = [&](const char* rollout_is) {
    spec::RolloutCorrectionConfig config;
    config.bypass_mode = true;
    config.loss_type = "reinforce";
    config.rollout_is = rollout_is;
    config.rollout_is_threshold = "1e-9";  // less than any ratio of probabilities
    const spec::ActorConfig actor;
    const step::PolicyObjective objective{
        actor, {kTokens, 6, 13}, value_or_throw(spec::bypass_terms(config))};
    model.zero_grads();
    const auto s =
        step::train_micro_batch(model.model->ops(), model.model->weights(), e, 0, 4, objective, {});
    if (std::string_view(rollout_is) != "null") {
      EXPECT_NEAR(number(s, "rollout_corr/rollout_is_mean"), 1e-9, 1e-15);
    }
    return model.copy_grads();
  };
  const auto plain = gradients("null"), weighed = gradients("token");
  for (std::size_t u = 0; u < plain.size(); ++u) {
    EXPECT_GT(plain[u].abs().max().item<double>(), 0);
    EXPECT_TRUE(at::allclose(weighed[u] * 1e9, plain[u], 1e-9, 1e-12)) << "unit " << u;
  }
}

TEST(PackedUpdates, OfTheCritic) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    TestModel model(ops::testing::tiny_llama(), spec::Head::kScalar, std::nullopt, dtype);
    for (const std::string& aggregation : spec::loss_aggregation_names()) {
      SCOPED_TRACE(aggregation);
      const auto keep = spec::checkpointing(spec::CheckpointMode::kFull, model.shape);
      expect_equal(model, rows_of(kRows, dtype), 1, 1, [&](const ArrangedBatch& b) {
        step::Experience<at::Tensor> e;
        e.sequences = b.sequences;
        e.returns = b.arranged(values(1, dtype));
        e.values = b.arranged(values(2, dtype));
        return sum_over({1, kRows, kRows, 4}, b.sequences, [&](auto first, auto count) {
          const step::ValueObjective objective{
              0.2, *spec::parse_loss_aggregation(aggregation), {kTokens, 6, 13}};
          const auto s = step::train_micro_batch(model.model->ops(), model.model->weights(), e,
                                                 first, count, objective, keep);
          const double tokens = weight(s, "critic/vpred_mean"), share = share_of(tokens);
          return std::vector<double>{number(s, "critic/vf_loss"), tokens,
                                     number(s, "critic/vpred_mean") * share,
                                     number(s, "critic/vf_clipfrac") * share};
        });
      });
    }
  }
}

TEST(PackedUpdates, OfPairs) {
  constexpr std::int64_t kPairs = kRows / 2;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto keep = spec::Checkpointing{};
    const Sequences batch = rows_of(kRows, dtype, false);
    const spec::UpdateShape shape{1, kPairs, kPairs, 2};
    {
      TestModel model(ops::testing::tiny_llama(), spec::Head::kScalar, std::nullopt, dtype);
      const at::Tensor margins = at::arange(kPairs, dtype).mul_(0.1);
      const auto work = [&](const ArrangedBatch& b) {
        step::Experience<at::Tensor> e = with_sequences(b.sequences);
        e.margins = b.arranged_rows(margins);
        return sum_over(shape, b.sequences, [&](auto first, auto count) {
          const auto s =
              step::train_micro_batch(model.model->ops(), model.model->weights(), e, first, count,
                                      step::PairObjective{0.01, kPairs}, keep);
          const double n = weight(s, "train/margin");
          return std::vector<double>{number(s, "train/loss"), number(s, "train/accuracy") * n,
                                     number(s, "train/margin") * n};
        });
      };
      expect_equal(model, batch, 2, 1, work);
    }
    TestModel model(ops::testing::tiny_llama(), spec::Head::kLanguageModel, std::nullopt, dtype);
    for (const std::string& kind : spec::preference_loss_names()) {
      SCOPED_TRACE(kind);
      spec::DpoConfig config;
      config.loss_type = *spec::parse_preference_loss(kind);
      const auto work = [&](const ArrangedBatch& b) {
        step::Experience<at::Tensor> e = with_sequences(b.sequences);
        e.reference_sums = b.arranged(at::arange(kRows, dtype).mul_(-1.3));
        return sum_over(shape, b.sequences, [&](auto first, auto count) {
          const auto s =
              step::train_micro_batch(model.model->ops(), model.model->weights(), e, first, count,
                                      step::PreferenceObjective{config, kPairs}, keep);
          const double n = weight(s, "rewards/chosen");
          return std::vector<double>{number(s, "train/loss"), number(s, "rewards/chosen") * n,
                                     number(s, "rewards/rejected") * n,
                                     number(s, "rewards/accuracies") * n};
        });
      };
      expect_equal(model, batch, 2, 1, work);
    }
  }
}

TEST(PackedBatch, IsRestoredAndWithinItsLimits) {
  const Sequences batch = rows_of(kRows, at::kFloat);
  const ArrangedBatch b = arrange(batch, packed(kRows), Use::kScoring);
  EXPECT_TRUE(b.restored(b.sequences.mask).equal(batch.mask));
  EXPECT_FALSE(b.sequences.tokens.defined());
  EXPECT_EQ(b.sequences.width(), kWidth);
  const step::Packed<at::Tensor>& p = *b.sequences.packed;
  const at::Tensor tokens = b.arranged(batch.tokens), lengths = b.arranged(batch.lengths);
  for (std::int64_t i = 0; i < kRows; ++i) {
    const std::int64_t first = p.starts[static_cast<std::size_t>(i)];
    const auto length = lengths[i].item<std::int64_t>();
    EXPECT_TRUE(p.tokens.narrow(0, first, length).equal(tokens[i].narrow(0, 0, length))) << i;
  }
  EXPECT_TRUE(p.targets.equal(b.arranged(batch.targets).masked_select(b.sequences.mask.gt(0))));
  EXPECT_EQ(p.tokens.size(0), batch.lengths.sum().item<std::int64_t>());
  EXPECT_EQ(p.rows.size(0), batch.mask.sum().item<std::int64_t>());
  for (const step::MicroBatch& m : p.cuts.at(0))
    EXPECT_LE(p.starts[static_cast<std::size_t>(m.first + m.count)] -
                  p.starts[static_cast<std::size_t>(m.first)],
              kBudget);
  // The row without trained tokens has no gradient and no place.
  const ArrangedBatch trained = arrange(batch, packed(kRows), Use::kTraining);
  EXPECT_EQ(trained.order.size(0), kRows - 1);
  // Nothing is trained: one row stands for the mini-batch, and its gradient is zero.
  Sequences none = batch;
  none.mask = at::zeros_like(batch.mask);
  const ArrangedBatch empty = arrange(none, packed(kRows), Use::kTraining);
  ASSERT_EQ(empty.order.size(0), 1);
  const bridge::NoAutograd no_autograd;
  TestModel model(ops::testing::tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat);
  const auto s = step::train_micro_batch(model.model->ops(), model.model->weights(),
                                         with_sequences(empty.sequences), 0, 1,
                                         step::CrossEntropyObjective{}, {});
  EXPECT_EQ(number(s, "train/loss"), 0);
  for (const at::Tensor& gradient : model.grads) EXPECT_EQ(gradient.abs().max().item<double>(), 0);
  EXPECT_THROW((void)arrange(batch, {4, kWidth - 1, 1, kRows}, Use::kScoring), Error);
}

}  // namespace
}  // namespace neap::train
