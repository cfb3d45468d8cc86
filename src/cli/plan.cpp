// `neap plan`: memory that a job needs, changes that would make it fit, and the reference of all
// keys.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/plan_formulas.h"
#include "cli/plan_model.h"
#include "cli/plan_picture.h"
#include "cli/program_commands.h"
#include "plan/rates/gpu_catalog.h"
#include "plan/rates/planned_device.h"
#include "plan/results/memory_plan.h"
#include "plan/results/placements.h"
#include "plan/results/plan_words.h"
#include "plan/search/advice.h"
#include "plan/search/degree_search.h"
#include "plan/search/simulation.h"
#include "plan/search/stage_plans.h"
#include "spec/keys/config_docs.h"
#include "spec/keys/default_lengths.h"
#include "spec/keys/peer_keys.h"

namespace neap::cli {
namespace {

class PlanCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "plan"; }
  [[nodiscard]] std::string summary() const override {
    return "Compute a job's memory and time before it runs, and settings that fit";
  }
  void declare(CLI::App& app) override {
    app.add_option("CONFIG", config_,
                   "configuration file (TOML; docs/configuration.md), or a model's folder or "
                   "config.json: plans of SFT, DPO, GRPO and PPO");
    app.add_option("OVERRIDES", overrides_, "key.path=value, as device.memory=24GiB");
    app.add_option("--capacity", capacity_,
                   "limit instead of device.memory, without the CUDA context")
        ->type_name("SIZE");
    app.add_option(
           "--fit", fit_,
           "up to three plans, with the settings that make them fit a card of this size, less the "
           "CUDA context; with --ranks also parallel sizes (docs/several-gpus.md)")
        ->type_name("SIZE");
    app.add_option("--ranks", ranks_,
                   "number of ranks, instead of trainer.nnodes x trainer.n_gpus_per_node; 8 per "
                   "machine if N is a multiple of 8")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
    app.add_option("--gpu", gpu_, "GPU to plan for; this machine need not have it")
        ->check(CLI::IsMember(plan::gpu_names()));
    app.add_option(
           "--host", host_,
           "limit of host memory, with a GPU; default: none, and --fit lists plans last that need "
           "more than this machine has")
        ->type_name("SIZE");
    CLI::Option* simulated =
        app.add_flag("--simulate", simulate_,
                     "predict time and memory of a step of all ranks (docs/simulation.md)");
    simulated->excludes("--fit");
    app.add_option("--picture", picture_, "with --simulate: draw the pipeline's stages")
        ->needs(simulated)
        ->type_name("FILE.svg|.png");
    app.add_flag("--json", json_, "print the plan as JSON (docs/json.md)");
    app.add_flag("--reference", reference_,
                 "only print every configuration key (docs/configuration.md)");
    app.add_flag(
        "--peer-keys", peer_keys_,
        "only print the keys of verl and TRL with their equivalents (docs/verl-trl-keys.md)");
    formulas_.declare(app);
    app.footer(
        "If the job does not fit, the command exits with 3 and lists settings that fit.\n"
        "Without --gpu the plan is for this machine's GPU.");
  }
  int run() override {
    set_ranks();
    const Status status = reference_          ? write_output(reference())
                          : peer_keys_        ? write_output(spec::peer_reference())
                          : formulas_.asked() ? formulas_.run(config_, overrides_, json_)
                                              : plan_job();
    return status.ok() ? code_ : fail(status);
  }

 private:
  static std::string reference() {
    std::string text;
    for (const spec::ReferencePage& page : spec::configuration_reference()) text += page.text;
    return text;
  }

  void set_ranks() {
    if (ranks_ == 0) return;
    const std::int64_t each = ranks_ % kNodeRanks == 0 ? kNodeRanks : ranks_;
    overrides_.push_back(format("trainer.nnodes={}", ranks_ / each));
    overrides_.push_back(format("trainer.n_gpus_per_node={}", each));
  }

  Result<plan::DeviceQuestion> question() const {
    if (!capacity_.empty() && !fit_.empty())
      return Status(ErrorCode::kInvalidArgument,
                    "--capacity and --fit exclude each other; give one of them");
    plan::DeviceQuestion out{.gpu = gpu_};
    for (const auto& [text, size] : {std::pair{&capacity_, &out.capacity},
                                     std::pair{&fit_, &out.card}, std::pair{&host_, &out.host}}) {
      if (text->empty()) continue;
      NEAP_TRY_ASSIGN(*size, parse_bytes(*text));
      if (size->is_zero())
        return Status(ErrorCode::kInvalidArgument, text == &host_
                                                       ? "--host must be greater than 0"
                                                       : "Capacity must be greater than 0");
    }
    return out;
  }

  Status plan_job() {
    if (config_.empty())
      return {ErrorCode::kInvalidArgument,
              "neap plan needs a configuration file: neap plan CONFIG.toml [key.path=value ...]"};
    NEAP_TRY_ASSIGN(const plan::DeviceQuestion asked, question());
    if (is_model(config_)) {
      if (simulate_)
        return {ErrorCode::kInvalidArgument,
                format("--simulate needs a job; {} is a model", config_)};
      return plan_model(config_, overrides_, asked, json_);
    }
    // With --fit and a number of ranks, choose all parallel sizes that are not set.
    const spec::OpenDegrees open =
        ranks_ > 0 && !fit_.empty() ? spec::OpenDegrees::kUnset : spec::OpenDegrees::kAuto;
    spec::Job job;
    NEAP_TRY(spec::Job::load(config_, overrides_, job, open));
    ranks_ = job.ranks();
    NEAP_TRY_ASSIGN(device_, plan::device_to_plan_for(job, asked, plan::driver_gpus()));
    if (!device_.keys.empty()) {
      overrides_.insert(overrides_.end(), device_.keys.begin(), device_.keys.end());
      job = spec::Job();
      NEAP_TRY(spec::Job::load(config_, overrides_, job, open));
    }
    Status status = plan_on_device(job);
    if (status.ok()) return status;
    return {status.code(), format("On {}: {}", device_.heading(), status.message())};
  }

  Status plan_on_device(spec::Job& job) {
    const plan::Target& target = device_.choice.target;
    if (job.parallel.automatic.any()) NEAP_TRY(choose_degrees(job, target));
    for (const std::string& warning : job.warnings) log::warn(warning);
    fields_ = device_.to_json(job);
    adapted_ = job.adapted;
    if (!adapted_.empty()) adapted_text_ = spec::adapted_text(job) + "\n";
    warnings_ = job.warnings;
    placements_text_ = plan::placements_text(job);
    placements_ = plan::placements_json(job);
    if (simulate_) return simulate(job);
    if (job.has_stages()) return plan_stages(job);
    if (!fit_.empty()) return fit(job);
    NEAP_TRY_ASSIGN(const plan::PlanWithOutlook found, plan::make_plan_with_outlook(job, target));
    Json out = json_of(found.plan);
    out["alternatives"] = found.outlook.to_json();
    if (found.plan.fits())
      return show(found.plan, out, found.outlook.to_text(found.plan, device_.context));
    code_ = 3;
    const std::string knobs = plan::knobs_text(job, target);
    return show(found.plan, out, knobs.empty() ? "" : knobs + "\n");
  }

  // Chooses the parallel sizes that the job leaves open.
  Status choose_degrees(spec::Job& job, const plan::Target& target) {
    plan::DegreeChoice choice = plan::choose_degrees({config_, overrides_, job}, target);
    if (!choice.fits()) {
      if (fit_.empty()) return choice.refusal();
      NEAP_TRY_ASSIGN(choice.overrides, degrees_to_fit(job, choice, target));
    }
    overrides_.insert(overrides_.end(), choice.overrides.begin(), choice.overrides.end());
    degrees_ = choice.to_json();
    degrees_text_ = choice.to_text() + "\n";
    job = spec::Job();
    return spec::Job::load(config_, overrides_, job);
  }

  // If no parallel configuration fits, takes the nearest one without pipeline stages that fits with
  // changes.
  Result<std::vector<std::string>> degrees_to_fit(const spec::Job& job,
                                                  const plan::DegreeChoice& choice,
                                                  const plan::Target& target) {
    Status nearest;
    for (const plan::DegreeCandidate& each : choice.candidates) {
      if (!each.refused.empty() || each.staged) continue;
      std::vector<std::string> words = spec::assignments(job, each.degrees);
      std::vector<std::string> overrides = overrides_;
      overrides.insert(overrides.end(), words.begin(), words.end());
      spec::Job written;
      NEAP_TRY(spec::Job::load(config_, overrides, written));
      Result<std::vector<plan::MemoryPlan>> found = plan::find_fit(written, target, host_limit());
      if (found.ok()) {
        fitted_ = *std::move(found);
        return words;
      }
      if (nearest.ok()) nearest = found.status();
    }
    return nearest.ok() ? choice.refusal() : nearest;
  }

  [[nodiscard]] plan::HostLimit host_limit() const {
    return {device_.context.is_zero() ? Bytes() : device_.host, device_.host_is_asked};
  }

  // Each stage has its own plan. The shown plan is the one with the highest peak.
  Status plan_stages(const spec::Job& job) {
    if (!fit_.empty() && degrees_.is_null())
      return {
          ErrorCode::kInvalidArgument,
          "--fit plans models that one rank has; with parallel.pipeline_model_parallel_size use "
          "--capacity"};
    NEAP_TRY_ASSIGN(const plan::StagePlans found, plan::plan_stages(job, device_.choice.target));
    const plan::MemoryPlan& plan = found.stages[found.binding()].plan;
    Json out = json_of(plan);
    out["stages"] = found.to_json();
    if (!plan.fits()) code_ = 3;
    return show(plan, out, "\n" + found.to_text());
  }

  Status simulate(const spec::Job& job) {
    const plan::DeviceChoice& chosen = device_.choice;
    NEAP_TRY_ASSIGN(const plan::Simulation found, plan::simulate(job, chosen.target));
    if (!found.plans.stages[found.plans.binding()].plan.fits()) code_ = 3;
    if (!picture_.empty()) NEAP_TRY(write_picture(found, picture_));
    Json out = found.to_json();
    for (const char* field : {"device", "dtype", "assumed", "context"}) out[field] = fields_[field];
    out["throughput_from"] = chosen.target.rates_from;
    out["placements"] = placements_;
    if (!degrees_.is_null()) out["parallel_sizes"] = degrees_;
    if (json_) return write_output(json_text(out, 2) + "\n");
    return write_output(format("A step of {} on {} x {}, simulated\n{}\n{}rates: {}\n{}", config_,
                               ranks_, device_.heading(), degrees_text_, found.to_text(),
                               chosen.target.rates_from,
                               job.places_models_alike() ? "" : placements_text_));
  }

  Status fit(const spec::Job& job) {
    const plan::Target& target = device_.choice.target;
    std::vector<plan::MemoryPlan> plans = std::move(fitted_);
    if (plans.empty()) {
      NEAP_TRY_ASSIGN(plans, plan::find_fit(job, target, host_limit()));
    }
    // A plan that needs less was made for a smaller capacity.
    for (plan::MemoryPlan& plan : plans) plan.capacity = target.capacity;
    Json out = json_of(plans.front());
    out["plans"] = Json::array();
    std::string text = format(
        "\nPlans that fit into {}, fastest first{}\n", target.capacity,
        device_.lacks_host(plans.back()) ? ", but those that need more host memory last" : "");
    for (std::size_t i = 0; i < plans.size(); ++i) {
      out["plans"].push_back(plan::summary_json(plans[i]));
      text += format("  {}. {}; {} of host memory{}\n", i + 1, plan::sentence_of(plans[i]),
                     plans[i].host_bytes,
                     device_.lacks_host(plans[i]) ? format(", more than {}", device_.host) : "");
    }
    if (plans.front().changes.empty())
      text += format("The job fits into {} as it is.\n", target.capacity);
    for (const std::string_view effect : plan::effects_of(plans.front()))
      text += format("  - {}\n", effect);
    return show(plans.front(), out, text);
  }

  [[nodiscard]] Json json_of(const plan::MemoryPlan& plan) const {
    Json out = plan.to_json();
    for (const auto& [field, value] : fields_.items()) out[field] = value;
    out["ranks"] = ranks_;
    out["adapted"] = adapted_;
    out["warnings"] = warnings_;
    out["placements"] = placements_;
    if (!degrees_.is_null()) out["parallel_sizes"] = degrees_;
    return out;
  }

  [[nodiscard]] Status show(const plan::MemoryPlan& plan, const Json& json,
                            const std::string& below) const {
    if (json_) return write_output(json_text(json, 2) + "\n");
    return write_output(format("{} of {} on {}{}\n{}{}\n{}", plan.task, config_, device_.heading(),
                               ranks_ > 1 ? format(", each of {} ranks", ranks_) : "",
                               device_.totals(plan), adapted_text_, degrees_text_) +
                        plan.to_text() + placements_text_ + below);
  }

  static constexpr std::int64_t kNodeRanks = 8;

  std::string config_, capacity_, fit_, gpu_, host_, picture_;
  std::vector<std::string> overrides_;
  std::vector<std::string> adapted_, warnings_;  // as in spec::Job
  std::string adapted_text_, degrees_text_, placements_text_;
  std::vector<plan::MemoryPlan> fitted_;  // with the chosen parallel sizes, if they need changes
  plan::PlannedDevice device_;
  Json fields_;             // of the device
  Json placements_;         // of each model
  Json degrees_;            // how they were chosen; null: none was open
  std::int64_t ranks_ = 0;  // 0: from the configuration
  bool json_ = false, reference_ = false, peer_keys_ = false, simulate_ = false;
  PlanFormulas formulas_;
  int code_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() {
  return std::make_unique<PlanCommand>();
}

}  // namespace neap::cli
