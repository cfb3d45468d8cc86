// Losses, gradients and advantages against make_goldens.py.
#include "golden_file.h"
#include "model/aten_ops.h"
#include "rlhf/core_algos.h"
#include "spec/loss_kinds.h"
#include "step/losses.h"

namespace neap::rlhf {
namespace {

using neap::testing::expect_close;
using neap::testing::goldens;
using neap::testing::mask_of;
using neap::testing::numbers;
using neap::testing::table;

spec::ActorConfig config_of(const Json& want) {
  spec::ActorConfig config;
  config.loss_mode = *spec::parse_policy_loss(want["loss_mode"].get<std::string>());
  config.loss_agg_mode = *spec::parse_loss_aggregation(want["loss_agg_mode"].get<std::string>());
  config.clip_ratio_low = want["low"].get<double>();
  config.clip_ratio_high = want["high"].get<double>();
  config.clip_ratio_c = want["c"].get<double>();
  return config;
}

// Rows [first, first + count) of a mini-batch.
step::PolicyGradient<at::Tensor> part_of(const Json& batch, const Json& want, std::int64_t first,
                                         std::int64_t count) {
  model::AtenOps ops(at::kCPU);
  const spec::ActorConfig config = config_of(want);
  const at::Tensor all = mask_of(batch["lengths"], batch["width"].get<std::int64_t>());
  const at::Tensor mask = all.narrow(0, first, count);
  const auto rows = [&](const char* name) { return table(batch[name]).narrow(0, first, count); };
  const at::Tensor weights =
      step::loss_weights(ops, mask, spec::aggregation_of(config.loss_mode, config.loss_agg_mode),
                         loss_scale(all, want["length"].get<std::int64_t>()));
  return step::policy_loss(
      ops,
      step::PolicyInputs<at::Tensor>{rows("old"), rows("new"), rows("advantage"), mask, weights},
      config);
}

void expect_policy(const Json& batch) {
  const auto rows = static_cast<std::int64_t>(batch["lengths"].size());
  for (const Json& want : batch["cases"]) {
    SCOPED_TRACE(want["loss_mode"].get<std::string>() + " " +
                 want["loss_agg_mode"].get<std::string>());
    const auto whole = part_of(batch, want, 0, rows);
    expect_close(whole.statistics.loss, want["loss"].get<double>());
    expect_close(whole.d_log_probs, table(want["gradient"]));
    expect_close(whole.statistics.clip_fraction, want["clip_fraction"].get<double>());
    expect_close(whole.statistics.clip_fraction_lower, want["clip_fraction_lower"].get<double>());
    // Micro-batches, and the rows of ranks, add up to the mini-batch whatever their sizes.
    const auto first = part_of(batch, want, 0, 1);
    const auto rest = part_of(batch, want, 1, rows - 1);
    expect_close(first.statistics.loss + rest.statistics.loss, want["loss"].get<double>());
    expect_close(at::cat({first.d_log_probs, rest.d_log_probs}), whole.d_log_probs);
  }
}

TEST(LossGoldens, PolicyLossesWithEveryAggregation) {
  EXPECT_EQ(goldens()["policy"]["cases"].size(),
            spec::policy_loss_names().size() * (spec::loss_aggregation_names().size() + 1));
  expect_policy(goldens()["policy"]);
}

TEST(LossGoldens, ValuesOfTheOtherSystems) {
  expect_policy(goldens()["published"]);
}

TEST(LossGoldens, Advantages) {
  const Json& golden = goldens()["advantages"];
  const at::Tensor mask = mask_of(golden["lengths"], golden["width"].get<std::int64_t>());
  const AdvantageInputs in{table(golden["rewards"]),
                           mask,
                           {},
                           numbers(golden["baselines"]),
                           golden["group"].get<std::vector<std::int64_t>>()};
  spec::AlgorithmConfig config;
  config.norm_adv_by_std_in_grpo = false;
  for (const auto& [name, want] : golden["want"].items()) {
    SCOPED_TRACE(name);
    config.adv_estimator = *spec::parse_advantage_estimator(name);
    expect_close(make_advantages(config, in).advantages, table(want));
  }
}

}  // namespace
}  // namespace neap::rlhf
