// The updates of the critic and the actor: clipped losses over mini-batches.
#include "rlhf/ppo_update.h"

#include "bridge/runtime.h"
#include "rlhf/core_algos.h"
#include "rlhf/model_update.h"
#include "step/phases.h"

namespace neap::rlhf {
namespace {

// Updates over mini-batches of experience. The whole mini-batch decides what its losses are divided
// by, wherever its rows are.
class ExperienceUpdate {
 public:
  ExperienceUpdate(Context& context, train::ModelWorker& worker, const Experience& e,
                   spec::Body body, std::int64_t step)
      : experience(e),
        update(context, worker, body, step),
        job_(context.job),
        ranks_(context.ranks.size()),
        mini_batch_(spec::update_shape(job_, body).mini_batch * ranks_) {
    train::ArrangedBatch batch = update.arrange(e.sequences);
    const bridge::HostScope host;
    transform_rows(experience, [&](const at::Tensor& t) { return batch.arranged(t); });
    experience.sequences = std::move(batch.sequences);
  }

  void run(const ModelUpdate::Micro& micro) {
    update.run(experience.sequences, micro, [&](std::int64_t first) {
      scale = loss_scale(experience.batch_mask.narrow(0, first * ranks_, mini_batch_),
                         job_.loss_scale_factor());
    });
  }

  Experience experience;  ///< in the order of the micro-batches
  ModelUpdate update;
  step::LossScale scale;

 private:
  const spec::Job& job_;
  std::int64_t ranks_, mini_batch_;
};

}  // namespace

void train_critic(Context& context, train::ModelWorker& critic, const Experience& e,
                  std::int64_t step, Metrics& metrics) {
  const spec::CriticConfig& config = context.job.critic;
  model::Transformer& model = critic.model();
  ExperienceUpdate updates(context, critic, e, spec::Body::kValueUpdate, step);
  ModelUpdate& update = updates.update;
  updates.run([&](std::int64_t first, std::int64_t count, const spec::Checkpointing& keep) {
    const step::ValueMicroStatistics s =
        step::value_micro_batch(model.ops(), model.weights(), updates.experience, first, count,
                                config.cliprange_value, config.loss_agg_mode, updates.scale, keep);
    update.add_share("critic/vf_loss", s.loss);
    update.add_mean("critic/vf_clipfrac", s.clip_fraction, s.tokens);
    update.add_mean("critic/vpred_mean", s.mean, s.tokens);
  });
  update.put(metrics, "critic");
}

void train_actor(Context& context, train::ModelWorker& actor, const Experience& e,
                 std::int64_t step, Metrics& metrics) {
  const spec::Job& job = context.job;
  const spec::ActorConfig& config = job.actor;
  model::Transformer& model = actor.model();
  step::LogProbOptions options;
  options.temperature = job.log_prob_temperature();
  options.entropy = config.entropy_coeff != 0;
  ExperienceUpdate updates(context, actor, e, spec::Body::kPolicyUpdate, step);
  ModelUpdate& update = updates.update;
  const spec::RolloutCorrectionConfig& correction = job.algorithm.rollout_correction;
  updates.run([&](std::int64_t first, std::int64_t count, const spec::Checkpointing& keep) {
    const step::PolicyMicroStatistics s =
        step::policy_micro_batch(model.ops(), model.weights(), updates.experience, first, count,
                                 step::policy_objective(job, updates.scale), options, keep);
    if (correction.bypass_mode && correction.rejects())
      update.add_mean("rollout_corr/rollout_rs_masked_fraction", s.rejected, s.tokens);
    if (correction.bypass_mode && correction.weighs() && correction.loss_type == "reinforce")
      update.add_mean("rollout_corr/rollout_is_mean", s.weight, s.tokens);
    if (config.use_kl_loss) update.add_share("actor/kl_loss", s.kl_loss);
    update.add_share("actor/pg_loss", s.policy.loss);
    update.add_mean("actor/pg_clipfrac", s.policy.clip_fraction, s.tokens);
    update.add_mean("actor/pg_clipfrac_lower", s.policy.clip_fraction_lower, s.tokens);
    update.add_mean("actor/ppo_kl", s.policy.kl, s.tokens);
  });
  update.put(metrics, "actor");
  if (config.use_kl_loss) metrics["actor/kl_coef"] = config.kl_loss_coef;
}

}  // namespace neap::rlhf
