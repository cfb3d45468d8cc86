#include "rlhf/experience/rollout_correction.h"

#include <ATen/ATen.h>

#include "base/status.h"
#include "ops/aten_ops.h"
#include "rlhf/experience/core_algos.h"
#include "step/training/rollout_terms.h"

namespace neap::rlhf {
namespace {

double number(const at::Tensor& t) {
  return t.item<double>();
}

at::Tensor held(const at::Tensor& x) {
  ops::AtenOps ops(x.device());
  return step::held_log_ratio(ops, x);
}

// In float64, as everything that follows.
at::Tensor log_ratio(const RolloutDivergence& d) {
  ops::AtenOps ops(d.mask.device());
  return step::rollout_log_ratio(ops, d.trainer, d.rollout, d.mask).to(at::kDouble);
}

at::Tensor sequence_mean(const at::Tensor& x, const at::Tensor& mask) {
  return (x * mask).sum(-1) / mask.sum(-1).clamp_min(1);
}

}  // namespace

void describe_divergence(const RolloutDivergence& d, Metrics& metrics) {
  const at::Tensor mask = d.mask.to(at::kDouble);
  const at::Tensor r = log_ratio(d);
  const auto put = [&](const char* name, const at::Tensor& value) {
    metrics[std::string("rollout_corr/") + name] = number(value);
  };
  put("kl", masked_mean(-r, mask));
  put("k3_kl", masked_mean(r.exp() - r - 1, mask));
  const at::Tensor training = -sequence_mean(d.trainer.to(at::kDouble), mask);  // (B,)
  const at::Tensor rollout = -sequence_mean(d.rollout.to(at::kDouble), mask);
  const at::Tensor difference = training - rollout;
  put("training_ppl", training.exp().mean());
  put("rollout_ppl", rollout.exp().mean());
  put("training_log_ppl", training.mean());
  put("rollout_log_ppl", rollout.mean());
  put("log_ppl_diff", difference.mean());
  put("log_ppl_abs_diff", difference.abs().mean());
  put("log_ppl_diff_max", difference.max());
  put("log_ppl_diff_min", difference.min());
  put("ppl_ratio", difference.exp().mean());
  put("chi2_token", masked_mean(held(r).exp().square(), mask) - 1);
  put("chi2_seq", (2 * held(r.sum(-1))).exp().mean() - 1);
}

at::Tensor rollout_weights(const spec::RolloutCorrectionConfig& config, const RolloutDivergence& d,
                           Metrics& metrics) {
  if (!config.weighs()) return {};
  const spec::ImportanceWeights rule = value_or_throw(spec::importance_weights(config));
  const at::Tensor mask = d.mask.to(at::kDouble);
  ops::AtenOps ops(mask.device());
  const at::Tensor raw = step::probability_ratios(ops, log_ratio(d), mask, rule);
  const double low = rule.low ? *rule.low : 1 / rule.high;
  metrics["rollout_corr/rollout_is_ratio_fraction_high"] =
      number(masked_mean(raw.gt(rule.high).to(at::kDouble), mask));
  metrics["rollout_corr/rollout_is_ratio_fraction_low"] =
      number(masked_mean(raw.lt(low).to(at::kDouble), mask));
  const at::Tensor w = step::bounded_weights(ops, raw, rule);
  if (config.rollout_is_batch_normalize) {
    metrics["rollout_corr/rollout_is_batch_norm_factor"] =
        step::normalize_weights(ops, w, mask, rule);
  }
  const at::Tensor mean = masked_mean(w, mask);
  const at::Tensor variance = masked_mean((w - mean).square(), mask);
  metrics["rollout_corr/rollout_is_mean"] = number(mean);
  metrics["rollout_corr/rollout_is_std"] = number(variance.clamp_min(0).sqrt());
  const at::Tensor inside = w.masked_select(mask.gt(0));
  if (inside.numel() > 0) {
    metrics["rollout_corr/rollout_is_min"] = number(inside.min());
    metrics["rollout_corr/rollout_is_max"] = number(inside.max());
  }
  metrics["rollout_corr/rollout_is_eff_sample_size"] =
      1 / number(masked_mean((w / (mean + 1e-8)).square(), mask));
  return w.to(d.mask.scalar_type());
}

at::Tensor geometric_means(const at::Tensor& weights, const at::Tensor& mask) {
  const at::Tensor wide = mask.to(at::kDouble);
  const at::Tensor logs = (weights.to(at::kDouble) + 1e-10).log();
  return (sequence_mean(logs, wide).exp().unsqueeze(-1) * wide).to(mask.scalar_type());
}

at::Tensor accepted_mask(const spec::RolloutCorrectionConfig& config, const RolloutDivergence& d,
                         Metrics& metrics) {
  if (!config.rejects()) return d.mask;
  const at::Tensor mask = d.mask.to(at::kDouble);
  ops::AtenOps ops(mask.device());
  const at::Tensor kept =
      step::accepted_tokens(ops, log_ratio(d), mask, value_or_throw(spec::rejection_rules(config)));
  const at::Tensor there = mask.sum(-1).gt(0).to(at::kDouble);
  const at::Tensor left = kept.sum(-1).gt(0).to(at::kDouble);
  metrics["rollout_corr/rollout_rs_masked_fraction"] = 1 - number(masked_mean(kept, mask));
  metrics["rollout_corr/rollout_rs_seq_masked_fraction"] = 1 - number(masked_mean(left, there));
  return kept.to(d.mask.scalar_type());
}

}  // namespace neap::rlhf
