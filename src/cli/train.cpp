// neap train: runs the training that a configuration file describes.
#include <string>
#include <vector>

#include "base/format.h"
#include "bridge/attention.h"
#include "bridge/device_context.h"
#include "bridge/product_rates.h"
#include "bridge/torch_cuda.h"
#include "cli/command.h"
#include "cli/ranks.h"
#include "cli/trainer_commands.h"
#include "rlhf/run/run.h"
#include "rlhf/trainer/issue_rate.h"
#include "spec/job/job.h"

namespace neap::cli {
namespace {

class TrainCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return std::string(kTrain.name); }
  [[nodiscard]] std::string summary() const override { return std::string(kTrain.summary); }
  void declare(CLI::App& app) override {
    app.add_option("CONFIG", config_, "configuration file (TOML; docs/configuration.md)")
        ->required();
    app.add_option("OVERRIDES", overrides_,
                   "key.path=value, as trainer.total_training_steps=10 or device.memory=24GiB");
    app.footer(
        "Plan, samples and the table of phases go to stdout, progress to stderr. Ctrl-C finishes "
        "the step\nand saves a checkpoint; the same command resumes from it "
        "(trainer.resume_mode).\nSeveral ranks: mpirun -n N, torchrun or srun before the same "
        "command (docs/several-gpus.md).");
  }
  /// Facts from libtorch on the device of a run: the attention kernel of each use, the rates of
  /// matrix products, and the time to start an operation.
  [[nodiscard]] Json facts() const override {
    const at::Device device(bridge::torch_cuda().available ? at::kCUDA : at::kCPU);
    Json out = Json::object();
    for (const bridge::AttentionKernel& k : bridge::attention_kernels(device))
      out[format("{}, {}", k.use, k.dtype)] = k.kernel;
    Json facts = {{"attention", std::move(out)}, {"products", products(device)}};
    if (!device.is_cuda()) return facts;
    facts["issue_seconds"] = rlhf::measure_issue_seconds(device);
    const Status loaded = bridge::load_own_kernels(0);
    facts["own_kernels"] = loaded.ok() ? "compiled by NVRTC" : loaded.message();
    return facts;
  }
  int run() override {
    return run_on_ranks(config_, overrides_, [](const spec::Job& job, const rlhf::Launch& launch) {
      if (job.task == spec::Task::kEval) {
        throw Error(
            ErrorCode::kInvalidArgument,
            "task is \"eval\", which trains nothing: run neap eval CHECKPOINT DATA --config "
            "with this file");
      }
      return rlhf::run(job, launch) == rlhf::Outcome::kInterrupted ? 1 : 0;
    });
  }

 private:
  static Json products(at::Device device) {
    const bridge::ProductRates rates = bridge::measure_products(device);
    Json out = {{"bfloat16", rates.half_flops}, {"float32", rates.single_flops}};
    if (rates.fp8_flops > 0) out["fp8"] = rates.fp8_flops;
    return out;
  }

  std::string config_;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_train_command() {
  return std::make_unique<TrainCommand>();
}

}  // namespace neap::cli
