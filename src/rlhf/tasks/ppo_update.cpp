// The updates of the critic and the actor: clipped losses over mini-batches.
#include "rlhf/tasks/ppo_update.h"

#include <utility>

#include "bridge/runtime.h"
#include "rlhf/experience/core_algos.h"
#include "rlhf/experience/row_exchange.h"
#include "rlhf/trainer/model_update.h"

namespace neap::rlhf {
namespace {

// Runs updates over mini-batches of experience. Loss denominators count the whole mini-batch over
// all ranks.
class ExperienceUpdate {
 public:
  ExperienceUpdate(Context& context, train::ModelWorker& worker, const Experience& e,
                   spec::Body body, std::int64_t step)
      : experience(e),
        update(context, worker, body, step),
        job_(context.job),
        ranks_(context.model_groups.of(worker.spec().id).data().size()),
        mini_batch_(spec::update_shape(job_, body).mini_batch * ranks_) {
    const RowExchange exchange(context, worker.spec().id, e.sequences,
                               e.sequences.size() * context.data_ranks().size() / mini_batch_);
    transform_rows(experience, [&](const at::Tensor& t) { return exchange.take(t); });
    train::ArrangedBatch batch = update.arrange(std::exchange(experience.sequences, {}));
    const bridge::HostScope host;
    transform_rows(experience, [&](const at::Tensor& t) { return batch.arranged(t); });
    experience.sequences = std::move(batch.sequences);
  }

  void run() {
    update.run(experience, [this](std::int64_t first) {
      return loss_scale(experience.batch_tokens.narrow(0, first * ranks_, mini_batch_),
                        job_.loss_scale_factor());
    });
  }

  Experience experience;  ///< in the order of micro-batches
  ModelUpdate update;

 private:
  const spec::Job& job_;
  std::int64_t ranks_, mini_batch_;
};

void train_critic(Context& context, train::ModelWorker& critic, const Experience& e,
                  std::int64_t step, Metrics& metrics) {
  ExperienceUpdate updates(context, critic, e, spec::Body::kValueUpdate, step);
  updates.run();
  updates.update.put(metrics, "critic");
}

void train_actor(Context& context, train::ModelWorker& actor, const Experience& e,
                 std::int64_t step, Metrics& metrics) {
  ExperienceUpdate updates(context, actor, e, spec::Body::kPolicyUpdate, step);
  updates.run();
  updates.update.put(metrics, "actor");
  const spec::ActorConfig& config = context.job.actor;
  if (config.use_kl_loss) metrics["actor/kl_coef"] = config.kl_loss_coef;
}

}  // namespace

void update_models(Context& context, PpoModels& models, const Experience& e, std::int64_t step,
                   Metrics& metrics) {
  if (train::ModelWorker* critic = models.critic()) {
    const Stopwatch watch(metrics, "update_critic");
    train_critic(context, *critic, e, step, metrics);
  }
  const Stopwatch watch(metrics, "update_actor");
  train_actor(context, models.actor(), e, step, metrics);
}

}  // namespace neap::rlhf
