// The updates of the critic and the actor: clipped losses over mini-batches.
#include "rlhf/ppo_update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/format.h"
#include "base/status.h"
#include "rlhf/core_algos.h"
#include "rlhf/update_phases.h"
#include "spec/loss_kinds.h"
#include "step/phases.h"

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

// The optimizer of step::update_phase: one step a mini-batch, at the schedule's learning rate.
class MiniBatchOptimizer {
 public:
  MiniBatchOptimizer(Context& context, train::ModelWorker& model, UpdatePhases& phases,
                     const Experience& e, std::int64_t step, const UpdateSpec& spec)
      : context_(context), model_(model), phases_(phases), e_(e), step_(step), spec_(spec) {
    updates_per_step_ = spec.epochs * (e.sequences.size() / shape().mini_batch);
  }
  [[nodiscard]] step::UpdateShape shape() const {
    return {spec_.epochs, spec_.mini_batch / context_.ranks.size(), spec_.micro_batch};
  }
  void begin(std::int64_t, std::int64_t first) {
    // The whole mini-batch decides what its losses are divided by, wherever its rows are.
    scale_ = loss_scale(e_.batch_mask.narrow(0, first * context_.ranks.size(), spec_.mini_batch));
    phases_.begin_backward();
    model_.optimizer().zero_grads();
  }
  void finish(std::int64_t update) {
    lr_ = train::learning_rate(spec_.optim, step_ * updates_per_step_ + update,
                               context_.total_steps * updates_per_step_);
    phases_.begin_update();
    averages.add(format("{}/grad_norm", spec_.prefix), model_.update(lr_, spec_.grad_clip));
  }
  [[nodiscard]] const step::LossScale& scale() const { return scale_; }
  /// Micro-batches of a mini-batch, of all ranks: their losses add up.
  [[nodiscard]] double batches() const {
    return static_cast<double>(spec_.mini_batch / spec_.micro_batch);
  }
  void put(Metrics& metrics) const {
    metrics[format("{}/lr", spec_.prefix)] = lr_;
    averages.put(context_.ranks, metrics);
  }

  Averages averages;

 private:
  Context& context_;
  train::ModelWorker& model_;
  UpdatePhases& phases_;
  const Experience& e_;
  std::int64_t step_;
  UpdateSpec spec_;
  std::int64_t updates_per_step_ = 0;
  step::LossScale scale_;
  double lr_ = 0;
};

}  // namespace

void train_critic(Context& context, train::ModelWorker& critic, const Experience& e,
                  std::int64_t step, Metrics& metrics) {
  const spec::Job& job = context.job;
  const spec::CriticConfig& config = job.critic;
  model::Transformer& model = critic.model();
  const auto aggregation = value_or_throw(spec::parse_loss_aggregation(config.loss_agg_mode));
  UpdatePhases phases(context.runtime, spec::ModelId::kCritic, spec::PhaseId::kTrainCritic);
  MiniBatchOptimizer optimizer(
      context, critic, phases, e, step,
      {"critic", config.optim, config.ppo_epochs, config.ppo_mini_batch_size * job.rollout.n,
       config.ppo_micro_batch_size_per_gpu, config.grad_clip});
  const at::NoGradGuard no_grad;
  step::update_phase(model.ops(), e.sequences.size(), optimizer.shape(), optimizer,
                     [&](std::int64_t first, std::int64_t count) {
                       const step::ValueMicroStatistics s = step::value_micro_batch(
                           model.ops(), model.weights(), e, first, count, config.cliprange_value,
                           aggregation, optimizer.scale(),
                           context.runtime.plan().checkpointing("critic"));
                       optimizer.averages.add("critic/vf_loss", s.loss * optimizer.batches());
                       optimizer.averages.add("critic/vf_clipfrac", s.clip_fraction, s.tokens);
                       optimizer.averages.add("critic/vpred_mean", s.mean, s.tokens);
                     });
  phases.close();
  optimizer.put(metrics);
}

void train_actor(Context& context, train::ModelWorker& actor, const Experience& e,
                 std::int64_t step, Metrics& metrics) {
  const spec::Job& job = context.job;
  const spec::ActorConfig& config = job.actor;
  model::Transformer& model = actor.model();
  model.check_trainable();
  step::LogProbOptions options;
  options.temperature = job.log_prob_temperature();
  options.entropy = config.entropy_coeff != 0;
  const auto aggregation = value_or_throw(spec::parse_loss_aggregation(config.loss_agg_mode));
  const spec::KlKind kl = value_or_throw(spec::parse_kl(config.kl_loss_type));
  UpdatePhases phases(context.runtime, spec::ModelId::kActor, spec::PhaseId::kTrainActor);
  MiniBatchOptimizer optimizer(
      context, actor, phases, e, step,
      {"actor", config.optim, config.ppo_epochs, config.ppo_mini_batch_size * job.rollout.n,
       config.ppo_micro_batch_size_per_gpu, config.grad_clip});
  const at::NoGradGuard no_grad;
  step::update_phase(
      model.ops(), e.sequences.size(), optimizer.shape(), optimizer,
      [&](std::int64_t first, std::int64_t count) {
        const step::PolicyMicroStatistics s =
            step::policy_micro_batch(model.ops(), model.weights(), e, first, count,
                                     {config, aggregation, kl, optimizer.scale()}, options,
                                     context.runtime.plan().checkpointing("actor"));
        Averages& averages = optimizer.averages;
        if (config.use_kl_loss) averages.add("actor/kl_loss", s.kl_loss * optimizer.batches());
        averages.add("actor/pg_loss", s.policy.loss * optimizer.batches());
        averages.add("actor/pg_clipfrac", s.policy.clip_fraction, s.tokens);
        averages.add("actor/pg_clipfrac_lower", s.policy.clip_fraction_lower, s.tokens);
        averages.add("actor/ppo_kl", s.policy.kl, s.tokens);
      });
  phases.close();
  optimizer.put(metrics);
  if (config.use_kl_loss) metrics["actor/kl_coef"] = config.kl_loss_coef;
}

}  // namespace neap::rlhf
