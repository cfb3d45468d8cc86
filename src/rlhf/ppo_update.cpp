// The updates of the critic and the actor: clipped losses over mini-batches.
#include "rlhf/ppo_update.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/format.h"
#include "rlhf/core_algos.h"

namespace neap::rlhf {
namespace {

// Numbers of the micro batches of one update, of all ranks: each is a mean over its mini-batches.
class Averages {
 public:
  void add(const std::string& name, double value, double weight = 1) {
    auto& [sum, count] = sums_[name];
    sum += value * weight;
    count += weight;
  }
  /// Every rank has added the same names.
  void put(parallel::Communicator& ranks, Metrics& metrics) const {
    std::vector<double> flat;
    for (const auto& [name, entry] : sums_) {
      flat.push_back(entry.first);
      flat.push_back(entry.second);
    }
    ranks.sum(flat);
    std::size_t i = 0;
    for (const auto& [name, entry] : sums_) {
      metrics[name] = flat[i] / flat[i + 1];
      i += 2;
    }
  }

 private:
  std::map<std::string, std::pair<double, double>> sums_;
};

// How one model is updated.
struct UpdateSpec {
  const char* prefix;  // of its metrics
  const spec::OptimizerConfig& optim;
  std::int64_t epochs;
  std::int64_t mini_batch;   // sequences of all ranks
  std::int64_t micro_batch;  // sequences of one rank
  double grad_clip;
};

// Runs `micro` for every micro batch of this rank's share of every mini-batch and epoch; an
// optimizer step each mini-batch.
template <class Micro>
void update(Context& context, train::Role& role, const Experience& e, std::int64_t step,
            const UpdateSpec& spec, Metrics& metrics, const Micro& micro) {
  const std::int64_t ranks = context.ranks.size();
  const std::int64_t sequences = e.sequences.size();
  const std::int64_t share = spec.mini_batch / ranks;
  const std::int64_t updates_per_step = spec.epochs * (sequences / share);
  train::AdamW& optimizer = role.optimizer();
  Averages averages;
  double lr = 0;
  for (std::int64_t update = 0; update < updates_per_step; ++update) {
    const std::int64_t first = update * share % sequences;
    // The whole mini-batch decides what its losses are divided by, wherever its rows are.
    const LossScale scale = LossScale::of(e.batch_mask.narrow(0, first * ranks, spec.mini_batch));
    optimizer.zero_grads();
    for (std::int64_t at = first; at < first + share; at += spec.micro_batch) {
      micro(at, spec.micro_batch, scale, averages);
    }
    lr = train::learning_rate(spec.optim, step * updates_per_step + update,
                              context.total_steps * updates_per_step);
    averages.add(format("{}/grad_norm", spec.prefix), optimizer.reduce_grads(spec.grad_clip));
    optimizer.step(lr);
  }
  metrics[format("{}/lr", spec.prefix)] = lr;
  averages.put(context.ranks, metrics);
}

}  // namespace

void train_critic(Context& context, train::Role& critic, const Experience& e, std::int64_t step,
                  Metrics& metrics) {
  const spec::Job& job = context.job;
  const spec::CriticConfig& config = job.critic;
  const at::Device device = context.runtime.device();
  model::Transformer& model = critic.model();
  const auto phase = context.runtime.phase("train_critic");
  update(context, critic, e, step,
         {"critic", config.optim, config.ppo_epochs, config.ppo_mini_batch_size * job.rollout.n,
          config.ppo_micro_batch_size_per_gpu, config.grad_clip},
         metrics,
         [&](std::int64_t at, std::int64_t count, const LossScale& scale, Averages& averages) {
           const train::Sequences micro = e.sequences.slice(at, count, device);
           const auto part = [&](const at::Tensor& t) { return t.narrow(0, at, count).to(device); };
           const auto tape =
               model.forward_train(model::Batch::padded(micro.tokens),
                                   {config.model.enable_gradient_checkpointing, nullptr});
           const at::Tensor rows = micro.rows();
           at::Tensor values =
               model.scores(tape->hidden(), rows).view_as(micro.mask).requires_grad_();
           const ValueLoss loss = value_loss(values, part(e.returns), part(e.values), micro.mask,
                                             config.cliprange_value, config.loss_agg_mode, scale);
           const at::Tensor d_values = torch::autograd::grad({loss.loss}, {values})[0];
           tape->backward(model.scores_backward(tape->hidden(), rows, d_values.flatten()));
           const double weight = micro.mask.sum().item<double>();
           // The loss is a share of the mini-batch's: its micro batches add up.
           const double batches =
               static_cast<double>(config.ppo_mini_batch_size * job.rollout.n / count);
           averages.add("critic/vf_loss", loss.loss.item<double>() * batches);
           averages.add("critic/vf_clipfrac", loss.clip_fraction.item<double>(), weight);
           averages.add("critic/vpred_mean",
                        masked_mean(values.detach(), micro.mask).item<double>(), weight);
         });
}

void train_actor(Context& context, train::Role& actor, const Experience& e, std::int64_t step,
                 Metrics& metrics) {
  const spec::Job& job = context.job;
  const spec::ActorConfig& config = job.actor;
  const at::Device device = context.runtime.device();
  model::Transformer& model = actor.model();
  model::LogProbOptions options;
  options.temperature = job.rollout.temperature > 0 ? job.rollout.temperature : 1;
  options.entropy = config.entropy_coeff != 0;
  const auto phase = context.runtime.phase("train_actor");
  update(
      context, actor, e, step,
      {"actor", config.optim, config.ppo_epochs, config.ppo_mini_batch_size * job.rollout.n,
       config.ppo_micro_batch_size_per_gpu, config.grad_clip},
      metrics,
      [&](std::int64_t at, std::int64_t count, const LossScale& scale, Averages& averages) {
        const train::Sequences micro = e.sequences.slice(at, count, device);
        const auto part = [&](const at::Tensor& t) { return t.narrow(0, at, count).to(device); };
        const auto tape =
            model.forward_train(model::Batch::padded(micro.tokens),
                                {job.actor_model.enable_gradient_checkpointing, nullptr});
        const at::Tensor rows = micro.rows();
        const at::Tensor targets = micro.targets.flatten();
        const model::LogProbs out = model.log_probs(tape->hidden(), rows, targets, options);
        const at::Tensor log_probs = out.log_probs.view_as(micro.mask).detach().requires_grad_();
        std::vector<at::Tensor> leaves = {log_probs};
        const PolicyLoss policy = policy_loss(part(e.old_log_probs), log_probs, part(e.advantages),
                                              micro.mask, config, scale);
        at::Tensor loss = policy.loss;
        if (options.entropy) {
          leaves.push_back(out.entropy.view_as(micro.mask).detach().requires_grad_());
          loss = loss - config.entropy_coeff *
                            aggregate_loss(leaves[1], micro.mask, config.loss_agg_mode, scale);
        }
        const double batches =
            static_cast<double>(config.ppo_mini_batch_size * job.rollout.n / count);
        if (config.use_kl_loss) {
          const at::Tensor kl =
              aggregate_loss(kl_penalty(log_probs, part(e.ref_log_probs), config.kl_loss_type),
                             micro.mask, config.loss_agg_mode, scale);
          loss = loss + config.kl_loss_coef * kl;
          averages.add("actor/kl_loss", kl.item<double>() * batches);
        }
        const auto grads = torch::autograd::grad({loss}, leaves);
        tape->backward(
            model.log_probs_backward(tape->hidden(), rows, targets, out, grads[0].flatten(),
                                     options.entropy ? grads[1].flatten() : at::Tensor(), options));
        const double weight = micro.mask.sum().item<double>();
        averages.add("actor/pg_loss", policy.loss.item<double>() * batches);
        averages.add("actor/pg_clipfrac", policy.clip_fraction.item<double>(), weight);
        averages.add("actor/pg_clipfrac_lower", policy.clip_fraction_lower.item<double>(), weight);
        averages.add("actor/ppo_kl", policy.ppo_kl.item<double>(), weight);
      });
  if (config.use_kl_loss) metrics["actor/kl_coef"] = config.kl_loss_coef;
}

}  // namespace neap::rlhf
