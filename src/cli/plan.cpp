// `neap plan`: what a job needs before it runs, what would make it fit, and the reference of all keys.
#include <cstdio>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "cli/command.h"
#include "plan/advice.h"
#include "plan/device_choice.h"
#include "plan/memory_plan.h"
#include "spec/config_docs.h"

namespace neap::cli {
namespace {

class PlanCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "plan"; }
  [[nodiscard]] std::string summary() const override {
    return "Plan a job's memory: tags by phases, peaks, moves, and what would make it fit";
  }
  void declare(CLI::App& app) override {
    app.add_option("config", config_, "configuration file (TOML)")->type_name("CONFIG");
    app.add_option("overrides", overrides_, "changes to it")->type_name("key.path=value ...");
    app.add_option("--capacity", capacity_,
                   "plan for a device of this size instead of device.memory")
        ->type_name("SIZE");
    app.add_option("--fit", fit_, "look for settings that fit into this size")->type_name("SIZE");
    app.add_flag("--json", json_, "print the plan as JSON (docs/plan-json.md)");
    app.add_flag("--reference", reference_,
                 "print every configuration key (docs/configuration.md) and stop");
  }
  int run() override {
    if (reference_) {
      print(spec::configuration_reference());
      return 0;
    }
    const Status status = plan_job();
    return status.ok() ? code_ : fail(status);
  }

 private:
  static void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  Status plan_job() {
    if (config_.empty())
      return {ErrorCode::kInvalidArgument,
              "neap plan needs a configuration file: neap plan CONFIG.toml [key.path=value ...]"};
    if (!capacity_.empty() && !fit_.empty())
      return {ErrorCode::kInvalidArgument, "--capacity and --fit say the same; give one of them"};
    spec::Job job;
    NEAP_TRY(spec::Job::load(config_, overrides_, job));
    NEAP_TRY_ASSIGN(plan::DeviceChoice chosen,
                    plan::choose_device(job.device, plan::driver_gpus(), plan::Purpose::kPlan));
    const std::string size = fit_.empty() ? capacity_ : fit_;
    if (!size.empty()) {
      NEAP_TRY_ASSIGN(chosen.target.capacity, parse_bytes(size));
      if (chosen.target.capacity.is_zero())
        return {ErrorCode::kInvalidArgument, "Capacity must be greater than 0"};
    }
    if (!fit_.empty()) return fit(job, chosen);
    NEAP_TRY_ASSIGN(const plan::MemoryPlan plan, plan::make_plan(job, chosen.target));
    show(plan, chosen, {});
    if (!plan.fits()) code_ = 3;
    return {};
  }

  Status fit(const spec::Job& job, const plan::DeviceChoice& chosen) {
    NEAP_TRY_ASSIGN(const plan::Fit found, plan::find_fit(job, chosen.target));
    show(found.plan, chosen, found.overrides);
    if (json_) return {};
    if (found.overrides.empty()) {
      print(format("\nThe job fits into {} as it is.\n", chosen.target.capacity));
      return {};
    }
    std::string line;
    for (const std::string& o : found.overrides) line += " " + o;
    print(format("\nFits into {} with:\n ", chosen.target.capacity) + line + "\n");
    for (const std::string& effect : found.effects) print("  - " + effect + "\n");
    return {};
  }

  void show(const plan::MemoryPlan& plan, const plan::DeviceChoice& chosen,
            const std::vector<std::string>& overrides) const {
    if (json_) {
      Json out = plan.to_json();
      out["device"] = chosen.name;
      if (!fit_.empty()) out["overrides"] = overrides;
      print(out.dump(2) + "\n");
      return;
    }
    print(format("{} of {} on the {}\n\n", plan.task, config_, chosen.name) + plan.to_text());
  }

  std::string config_, capacity_, fit_;
  std::vector<std::string> overrides_;
  bool json_ = false, reference_ = false;
  int code_ = 0;
};

}  // namespace

NEAP_COMMAND(PlanCommand)

}  // namespace neap::cli
