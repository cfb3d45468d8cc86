// Three DPO steps against transformers' models, torch's autograd and its AdamW (make_dpo_goldens.py).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "../model/golden_weights.h"
#include "base/file.h"
#include "base/json.h"
#include "bridge/no_autograd.h"
#include "ops/transformer.h"
#include "spec/model/layout.h"
#include "step/pipeline/phases.h"
#include "step/training/training.h"
#include "train/sequences.h"
#include "unit/step/train_micro_batch.h"

namespace neap::rlhf {
namespace {

const Json& goldens() {
  static const Json kJson = [] {
    const std::string path = NEAP_SOURCE_DIR "/tests/golden/rlhf/dpo.json";
    return value_or_throw(parse_json(value_or_throw(read_file(path)), path));
  }();
  return kJson;
}

// A model with the golden weights in double.
struct Model {
  explicit Model(const Json& config)
      : shape(value_or_throw(spec::Architecture::from_json(config, "golden"))) {
    for (const auto& unit : spec::flat_layout(shape, spec::Head::kLanguageModel)) {
      weights.push_back(at::zeros({unit.elements}, at::kDouble));
      grads.push_back(at::zeros({unit.elements}, at::kDouble));
      averages.push_back(at::zeros({unit.elements}, at::kDouble));
      squares.push_back(at::zeros({unit.elements}, at::kDouble));
    }
    transformer.emplace(shape, spec::Head::kLanguageModel, ops::FlatTensors{weights, grads});
    neap::testing::fill_golden_weights(*transformer);
  }
  // torch's AdamW with the settings of ../model/make_goldens.py.
  void adamw(std::int64_t count) {
    spec::OptimizerConfig config;
    config.beta2 = 0.99;
    config.weight_decay = 0.1;
    for (std::size_t u = 0; u < weights.size(); ++u) {
      const at::Tensor number =
          transformer->ops().filled_like(weights[u], static_cast<double>(count));
      transformer->ops().fused_adamw_(weights[u], grads[u], averages[u], squares[u], number, 5e-3,
                                      config);
      grads[u].zero_();
    }
  }
  spec::Architecture shape;
  std::vector<at::Tensor> weights, grads, averages, squares;
  std::optional<ops::Transformer> transformer;
};

// Micro-batches of two pairs: their chosen, then their rejected responses.
train::Sequences sequences_of(const Json& pairs) {
  std::vector<train::Tokens> prompts, responses;
  for (std::size_t first = 0; first < pairs.size(); first += 2) {
    for (const std::size_t side : {1U, 2U}) {
      for (std::size_t i = first; i < first + 2; ++i) {
        prompts.push_back(pairs[i][0].get<train::Tokens>());
        responses.push_back(pairs[i][side].get<train::Tokens>());
      }
    }
  }
  train::Sequences out = train::make_sequences(prompts, responses, {9, 5, 0});
  out.mask = out.mask.to(at::kDouble);
  return out;
}

spec::DpoConfig config_of(const std::string& kind) {
  spec::DpoConfig config;
  config.beta = goldens()["beta"].get<double>();
  const bool smooth = kind == "cdpo" || kind == "robust";
  if (smooth) config.label_smoothing = goldens()["label_smoothing"].get<double>();
  config.loss_type = *spec::parse_preference_loss(kind == "cdpo" ? "sigmoid" : kind);
  return config;
}

void expect_near(double got, const Json& want, const char* name) {
  const double value = want[name].get<double>();
  EXPECT_NEAR(got, value, 1e-6 * std::max(1.0, std::abs(value))) << name;
}

void expect_run(const std::string& name, const std::string& kind, const Json& steps) {
  SCOPED_TRACE(name + " " + kind);
  const bridge::NoAutograd no_autograd;
  Model model(goldens()["configs"][name]);
  ops::Transformer& t = *model.transformer;
  const spec::DpoConfig config = config_of(kind);
  const auto pairs = static_cast<double>(goldens()["pairs"].size());
  step::Experience<at::Tensor> batch;
  batch.sequences = sequences_of(goldens()["pairs"]);
  std::vector<at::Tensor> sums;
  step::log_prob_phase(
      t.ops(), t.weights(), batch.sequences, {4}, {},
      [&](const step::MicroBatch& m, const step::LogProbs<at::Tensor>& values) {
        sums.push_back(
            (values.log_probs * batch.sequences.mask.narrow(0, m.first, m.count)).sum(-1));
      });
  batch.reference_sums = at::cat(sums);
  using spec::CheckpointMode;
  const CheckpointMode modes[] = {CheckpointMode::kNone, CheckpointMode::kSelective,
                                  CheckpointMode::kFull};
  for (std::size_t step = 0; step < steps.size(); ++step) {
    SCOPED_TRACE(step);
    const spec::Checkpointing keep = spec::checkpointing(modes[step % 3], model.shape);
    std::map<std::string, double> all;
    for (std::int64_t first = 0; first < 4; first += 2) {
      for (const step::LossNumber& number :
           step::train_micro_batch(t.ops(), t.weights(), batch, first, 2,
                                   step::PreferenceObjective{config, pairs}, keep))
        all[number.name] += number.value * number.weight.value_or(pairs) / pairs;
    }
    expect_near(all.at("train/loss"), steps[step], "loss");
    for (const char* mean :
         {"rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"})
      expect_near(all.at(mean), steps[step], mean);
    // Before the first step the gains are zero but for rounding.
    if (step > 0) expect_near(all.at("rewards/accuracies"), steps[step], "rewards/accuracies");
    model.adamw(static_cast<std::int64_t>(step) + 1);
  }
}

TEST(DpoGolden, ThreeStepsOfEveryLossAreTransformers) {
  at::set_num_threads(1);
  std::size_t runs = 0;
  for (const auto& [name, kinds] : goldens()["runs"].items()) {
    for (const auto& [kind, steps] : kinds.items()) {
      ASSERT_EQ(steps.size(), 4u);
      expect_run(name, kind, steps);
      ++runs;
    }
  }
  EXPECT_EQ(runs, 2 * (spec::preference_loss_names().size() + 1));
}

}  // namespace
}  // namespace neap::rlhf
