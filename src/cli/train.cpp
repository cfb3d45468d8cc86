// neap train: runs the stage that a configuration file describes.
#include <string>
#include <vector>

#include "cli/command.h"
#include "plan/job.h"
#include "rlhf/run.h"

namespace neap::cli {
namespace {

class TrainCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "train"; }
  [[nodiscard]] std::string summary() const override {
    return "Run SFT, reward-model, PPO or GRPO training from a configuration file";
  }
  void declare(CLI::App& app) override {
    app.add_option("CONFIG", config_, "configuration file (TOML; docs/configuration.md)")
        ->required();
    app.add_option("OVERRIDES", overrides_,
                   "key.path=value, as trainer.total_training_steps=10 or device.memory=24GiB");
    app.footer(
        "Plan, samples and the table of phases go to stdout, progress to stderr. Ctrl-C finishes "
        "the step\nand saves a checkpoint; the same command goes on from it "
        "(trainer.resume_mode).");
  }
  int run() override {
    plan::Job job;
    throw_if_error(plan::Job::load(config_, overrides_, job));
    return rlhf::run(job) == rlhf::Outcome::kInterrupted ? 1 : 0;
  }

 private:
  std::string config_;
  std::vector<std::string> overrides_;
};

}  // namespace
NEAP_COMMAND(TrainCommand)
}  // namespace neap::cli
