#include "rlhf/experience/core_algos.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/format.h"
#include "base/status.h"
#include "ops/aten_ops.h"
#include "spec/types/loss_kinds.h"

namespace neap::rlhf {
namespace {

// The scores (B), and the positions of each group's members.
struct Groups {
  std::vector<double> scores;
  std::map<std::int64_t, std::vector<std::size_t>> members;
};

Groups group_scores(const at::Tensor& token_rewards, const std::vector<std::int64_t>& group) {
  const at::Tensor sums = token_rewards.sum(-1).to(at::kCPU, at::kDouble).contiguous();
  if (static_cast<std::size_t>(sums.numel()) != group.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} sequences have {} group ids", sums.numel(), group.size()));
  }
  Groups out;
  out.scores.assign(sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel());
  for (std::size_t i = 0; i < group.size(); ++i) out.members[group[i]].push_back(i);
  return out;
}

Advantages broadcast(const std::vector<double>& a, const at::Tensor& mask) {
  const at::Tensor column =
      at::tensor(a, at::TensorOptions().dtype(at::kDouble)).to(mask.device(), mask.scalar_type());
  const at::Tensor out = column.unsqueeze(-1) * mask;  // (B, T)
  return {out, out};
}

double mean_of(const Groups& groups, const std::vector<std::size_t>& members) {
  double sum = 0;
  for (const std::size_t i : members) sum += groups.scores[i];
  return sum / static_cast<double>(members.size());
}

}  // namespace

at::Tensor masked_mean(const at::Tensor& x, const at::Tensor& mask) {
  return (x * mask).sum() / (mask.sum() + 1e-8);
}

at::Tensor masked_whiten(const at::Tensor& x, const at::Tensor& mask) {
  const double count = mask.sum().item<double>();
  if (count < 2) {
    throw Error(ErrorCode::kInvalidArgument,
                format("Whitening needs at least 2 tokens, the batch has {}", count));
  }
  const at::Tensor mean = masked_mean(x, mask);
  const at::Tensor variance = masked_mean((x - mean).square(), mask) * (count / (count - 1));
  return (x - mean) * at::rsqrt(variance + 1e-8);
}

at::Tensor kl_penalty(const at::Tensor& log_prob, const at::Tensor& ref_log_prob,
                      spec::KlKind kind) {
  ops::AtenOps ops(log_prob.device());
  return step::kl_value(ops, log_prob - ref_log_prob, kind.value);
}

KlController::KlController(const spec::AlgorithmConfig& config)
    : adaptive_(config.kl_ctrl_type == "adaptive"),
      start_(config.kl_coef),
      value_(start_),
      target_(config.target_kl),
      horizon_(static_cast<double>(config.horizon)) {}

void KlController::update(double current_kl, std::int64_t n_steps) {
  if (!adaptive_) return;
  const double error = std::clamp(current_kl / target_ - 1, -0.2, 0.2);
  value_ *= 1 + error * static_cast<double>(n_steps) / horizon_;
}

void KlController::restore(double value, double start) {
  if (adaptive_ && start == start_) value_ = value;
}

ShapedReward apply_kl_penalty(const at::Tensor& token_scores, const at::Tensor& old_log_prob,
                              const at::Tensor& ref_log_prob, const at::Tensor& mask, double beta,
                              spec::KlKind kind) {
  const at::Tensor kl = kl_penalty(old_log_prob, ref_log_prob, kind) * mask;
  const at::Tensor by_sequence = kl.sum(-1) / (mask.sum(-1) + 1e-8);
  return {token_scores - beta * kl, by_sequence.mean().item<double>()};
}

at::Tensor penalize_truncated(const spec::AlgorithmConfig& config, const at::Tensor& scores,
                              const at::Tensor& truncated) {
  const double factor = config.stop_properly_penalty_coef;
  const at::Tensor cut = truncated.to(scores.scalar_type());
  const at::Tensor scaled = factor < 0 ? at::full_like(scores, factor) : scores * factor;
  return scores * (1 - cut) + (scaled - config.missing_eos_penalty) * cut;
}

at::Tensor rows_of_varied_groups(const at::Tensor& metric, std::int64_t n) {
  const at::Tensor groups = metric.view({-1, n});
  const at::Tensor varied = std::get<0>(groups.max(-1)).gt(std::get<0>(groups.min(-1)));  // (G,)
  return varied.repeat_interleave(n).nonzero().flatten();
}

Advantages gae_advantages(const at::Tensor& token_rewards, const at::Tensor& values,
                          const at::Tensor& mask, double gamma, double lam) {
  const std::int64_t tokens = token_rewards.size(-1);
  at::Tensor next_value = at::zeros({token_rewards.size(0)}, token_rewards.options());
  at::Tensor running = at::zeros_like(next_value);
  at::Tensor advantages = at::empty_like(token_rewards);
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    const at::Tensor here = mask.select(-1, t);
    const at::Tensor value = values.select(-1, t);
    const at::Tensor delta = token_rewards.select(-1, t) + gamma * next_value - value;
    const at::Tensor candidate = delta + gamma * lam * running;
    next_value = value * here + next_value * (1 - here);
    running = candidate * here + running * (1 - here);
    advantages.select(-1, t).copy_(running);
  }
  at::Tensor returns = advantages + values;
  return {masked_whiten(advantages, mask), returns};
}

Advantages grpo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                           const std::vector<std::int64_t>& group, bool by_std, double eps) {
  const Groups groups = group_scores(token_rewards, group);
  std::vector<double> out(groups.scores.size());
  for (const auto& [id, members] : groups.members) {
    double mean = 0;
    double deviation = 1;
    if (members.size() > 1) {
      mean = mean_of(groups, members);
      double squares = 0;
      for (const std::size_t i : members) squares += std::pow(groups.scores[i] - mean, 2);
      deviation = std::sqrt(squares / static_cast<double>(members.size() - 1));
    }
    for (const std::size_t i : members) {
      out[i] = (groups.scores[i] - mean) / (by_std ? deviation + eps : 1.0);
    }
  }
  return broadcast(out, mask);
}

Advantages rloo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                           const std::vector<std::int64_t>& group) {
  const Groups groups = group_scores(token_rewards, group);
  std::vector<double> out(groups.scores);
  for (const auto& [id, members] : groups.members) {
    if (members.size() < 2) continue;
    const double n = static_cast<double>(members.size());
    const double mean = mean_of(groups, members);
    for (const std::size_t i : members) out[i] = n / (n - 1) * (groups.scores[i] - mean);
  }
  return broadcast(out, mask);
}

namespace {

// Discounted sums of rewards from each token on, (B, T). Positions with mask 0 pass the value on.
at::Tensor discounted_returns(const at::Tensor& token_rewards, const at::Tensor& mask,
                              double gamma) {
  at::Tensor returns = at::empty_like(token_rewards);
  at::Tensor running = at::zeros({token_rewards.size(0)}, token_rewards.options());
  for (std::int64_t t = token_rewards.size(-1) - 1; t >= 0; --t) {
    const at::Tensor here = mask.select(-1, t);
    running = (token_rewards.select(-1, t) + gamma * running) * here + running * (1 - here);
    returns.select(-1, t).copy_(running);
  }
  return returns;
}

}  // namespace

Advantages reinforce_plus_plus_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                                          double gamma) {
  const at::Tensor returns = discounted_returns(token_rewards, mask, gamma);
  return {masked_whiten(returns, mask) * mask, returns};
}

Advantages reinforce_plus_plus_baseline_advantages(const at::Tensor& token_rewards,
                                                   const at::Tensor& mask,
                                                   const std::vector<std::int64_t>& group) {
  const at::Tensor centred = grpo_advantages(token_rewards, mask, group, false, 0).advantages;
  const at::Tensor out = masked_whiten(centred, mask) * mask;
  return {out, out};
}

Advantages remax_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                            const at::Tensor& baselines) {
  const at::Tensor returns = discounted_returns(token_rewards, mask, 1);
  return {(returns - baselines.to(mask.scalar_type()).unsqueeze(-1)) * mask, returns};
}

Advantages opo_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                          const std::vector<std::int64_t>& group) {
  const Groups groups = group_scores(token_rewards, group);
  const at::Tensor counts = mask.sum(-1).to(at::kCPU, at::kDouble).contiguous();
  const double* lengths = counts.const_data_ptr<double>();
  std::vector<double> out(groups.scores);
  for (const auto& [id, members] : groups.members) {
    if (members.size() < 2) continue;
    double sum = 0, length = 0;
    for (const std::size_t i : members) {
      sum += lengths[i] * groups.scores[i];
      length += lengths[i];
    }
    for (const std::size_t i : members) out[i] -= sum / length;
  }
  return broadcast(out, mask);
}

Advantages gpg_advantages(const at::Tensor& token_rewards, const at::Tensor& mask,
                          const std::vector<std::int64_t>& group) {
  const Groups groups = group_scores(token_rewards, group);
  std::vector<double> out(groups.scores);
  const auto scored = std::count_if(out.begin(), out.end(), [](double s) { return s != 0; });
  const double factor =
      static_cast<double>(out.size()) / static_cast<double>(std::max<std::ptrdiff_t>(scored, 1));
  for (const auto& [id, members] : groups.members) {
    const double mean = members.size() > 1 ? mean_of(groups, members) : 0;
    for (const std::size_t i : members) out[i] = factor * (groups.scores[i] - mean);
  }
  return broadcast(out, mask);
}

Advantages make_advantages(const spec::AlgorithmConfig& config, const AdvantageInputs& in) {
  switch (config.adv_estimator) {
    case spec::AdvantageEstimator::kGae:
      return gae_advantages(in.token_rewards, in.values, in.mask, config.gamma, config.lam);
    case spec::AdvantageEstimator::kGrpo:
      return grpo_advantages(in.token_rewards, in.mask, in.group, config.norm_adv_by_std_in_grpo,
                             config.norm_adv_eps);
    case spec::AdvantageEstimator::kRloo:
      return rloo_advantages(in.token_rewards, in.mask, in.group);
    case spec::AdvantageEstimator::kReinforcePlusPlus:
      return reinforce_plus_plus_advantages(in.token_rewards, in.mask, config.gamma);
    case spec::AdvantageEstimator::kReinforcePlusPlusBaseline:
      return reinforce_plus_plus_baseline_advantages(in.token_rewards, in.mask, in.group);
    case spec::AdvantageEstimator::kRemax:
      return remax_advantages(in.token_rewards, in.mask, in.baselines);
    case spec::AdvantageEstimator::kOpo:
      return opo_advantages(in.token_rewards, in.mask, in.group);
    case spec::AdvantageEstimator::kGpg:
      return gpg_advantages(in.token_rewards, in.mask, in.group);
  }
  throw Error(ErrorCode::kInternal, "advantage estimator out of range");
}

step::LossScale loss_scale(const at::Tensor& tokens, std::int64_t length) {
  return {tokens.sum().item<double>(), static_cast<double>(tokens.size(0)),
          static_cast<double>(length)};
}

}  // namespace neap::rlhf
