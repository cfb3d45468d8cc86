#include "rlhf/experience/experience_metrics.h"

#include <ATen/ATen.h>

#include "rlhf/experience/core_algos.h"

namespace neap::rlhf {

void describe_experience(const spec::Job& job, const Experience& e, Metrics& metrics) {
  const at::Tensor& mask = e.sequences.mask;
  const at::Tensor lengths = mask.sum(-1);
  summarize(metrics, "response_length", lengths);
  metrics["response_length/clip_ratio"] =
      lengths.ge(static_cast<double>(job.data.max_response_length))
          .to(at::kDouble)
          .mean()
          .item<double>();
  metrics["response_length/truncated_ratio"] = e.truncated.mean().item<double>();
  summarize(metrics, "prompt_length", e.sequences.last + 1 - lengths);
  summarize(metrics, "critic/score", e.scores);
  metrics["critic/score/std"] = e.scores.to(at::kDouble).std(false).item<double>();
  if (const std::int64_t n = job.rollout.n; n > 1) {  // TRL's name; verl has no such metric
    metrics["frac_reward_zero_std"] =
        1 - static_cast<double>(rows_of_varied_groups(e.scores, n).numel()) /
                static_cast<double>(e.scores.numel());
  }
  if (e.baselines.defined()) summarize(metrics, "critic/baselines", e.baselines);
  if (e.entropy.defined()) metrics["actor/entropy"] = masked_mean(e.entropy, mask).item<double>();
  if (e.values.defined()) {
    summarize(metrics, "critic/values", e.values, mask);
    const at::Tensor returns = e.returns.masked_select(mask.gt(0));
    const at::Tensor errors = returns - e.values.masked_select(mask.gt(0));
    metrics["critic/vf_explained_var"] =
        1 - errors.var().item<double>() / (returns.var().item<double>() + 1e-5);
  }
  metrics["perf/total_num_tokens"] = (e.sequences.last + 1).sum().item<double>();
}

}  // namespace neap::rlhf
