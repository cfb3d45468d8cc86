// PPO and GRPO from kept experience: only the updates, without rollout, reward model and reference.
#include <memory>

#include "rlhf/experience/kept_experience.h"
#include "rlhf/experience/ppo_models.h"
#include "rlhf/tasks/ppo_update.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {
namespace {

class KeptTrainer final : public Trainer {
 public:
  explicit KeptTrainer(Context& context)
      : context_(context),
        models_(context),
        steps_(context.job.resolve(context.job.trainer.experience_dir)),
        steps_per_epoch_(steps_.schedule().steps_per_epoch) {}

  void load() override { models_.load(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return steps_per_epoch_; }
  Metrics train_step(std::int64_t step) override {
    Metrics metrics;
    update_models(context_, models_, read_experience(context_, steps_, step, metrics), step,
                  metrics);
    return metrics;
  }
  // Validation generates.
  [[nodiscard]] bool can_validate() const override { return false; }
  Validation validate(std::int64_t /*step*/) override { return {}; }
  void save(const std::filesystem::path& folder, train::SavedFiles& files) override {
    models_.save(folder, files);
  }
  void restore(const std::filesystem::path& folder) override { models_.restore(folder); }

 private:
  Context& context_;
  PpoModels models_;
  KeptSteps steps_;
  std::int64_t steps_per_epoch_;
};

}  // namespace

std::unique_ptr<Trainer> make_kept_trainer(Context& context) {
  return std::make_unique<KeptTrainer>(context);
}

}  // namespace neap::rlhf
