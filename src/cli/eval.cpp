// neap eval: scores a checkpoint's responses to a file of prompts.
#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/text_table.h"
#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "cli/ranks.h"
#include "cli/trainer_commands.h"
#include "rlhf/run/evaluate_checkpoint.h"

namespace neap::cli {
namespace {
namespace fs = std::filesystem;

std::string figure_table(const rlhf::Evaluation& e) {
  std::vector<std::string> head = {"source", "rows"};
  // Accuracy may be known for some sources only; these come first.
  const auto named = [&](const rlhf::SourceFigures& s, const std::string& name) {
    return std::find_if(s.figures.begin(), s.figures.end(),
                        [&](const auto& f) { return f.first == name; });
  };
  std::vector<rlhf::SourceFigures> rows = e.sources;
  if (rows.size() != 1) rows.push_back(e.all);
  if (rows.back().source.empty()) rows.back().source = "all";
  const auto most = std::max_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.figures.size() < b.figures.size();
  });
  for (const auto& [name, value] : most->figures) head.push_back(name);
  std::vector<std::vector<std::string>> lines = {head};
  for (const rlhf::SourceFigures& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    line = {row.source, format("{}", row.rows)};
    for (std::size_t i = 2; i < head.size(); ++i) {
      const auto at = named(row, head[i]);
      line.push_back(at == row.figures.end() ? "-" : format("{:.4f}", at->second));
    }
  }
  return table_text(lines);
}

std::string other_metrics(const rlhf::Evaluation& e) {
  std::string out;
  for (const auto& [name, value] : e.metrics) {
    const bool in_table =
        name.starts_with("val-") || name.starts_with("val/acc/") || name.starts_with("val/reward/");
    if (!in_table) out += format("{:<36} {:.4g}\n", name, value);
  }
  return out;
}

// A key that the command always sets, and the option that sets it on the command line. An empty
// option marks training keys, which are harmless.
struct OwnKey {
  std::string_view key;
  Json value;
  std::string_view instead;
};

class EvalCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return std::string(kEval.name); }
  [[nodiscard]] std::string summary() const override { return std::string(kEval.summary); }
  void declare(CLI::App& app) override {
    app.add_option(
           "CHECKPOINT", checkpoint_,
           "model folder, PEFT adapter, checkpoint (global_step_N, best) or output folder of "
           "a run")
        ->required();
    app.add_option("--adapter", adapter_, kAdapterHelp)->type_name("FOLDER");
    app.add_option("DATA", data_, "rows with prompts and right answers (JSONL or Parquet)")
        ->required();
    app.add_option("OVERRIDES", overrides_,
                   "key.path=value, as data.max_response_length=512 or "
                   "actor_rollout_ref.rollout.val_kwargs.n=4");
    app.add_option("--config", config_,
                   "configuration file (docs/configuration.md), such as the training's; its "
                   "models, task and files are replaced")
        ->type_name("FILE");
    app.add_option("--output", output_,
                   "file for prompts, responses and scores, one JSON object per row")
        ->type_name("FILE");
    app.add_flag("--json", json_, "print one JSON object instead of the table");
    app.footer(
        "Responses are scored by the configured reward functions and reward model, else by a rule: "
        "\"numeric\"\nif every row's right answer is a number, else \"symbolic\". They are "
        "greedy unless\nactor_rollout_ref.rollout.val_kwargs.do_sample=true. Without --config "
        "prompts may have any length and\nresponses up to 1024 tokens. Memory is planned as for "
        "training (device.memory=24GiB).\nSeveral ranks: mpirun -n N, torchrun or srun before the "
        "same command.");
  }
  int run() override;

 private:
  [[nodiscard]] std::vector<OwnKey> own_keys() const;
  void check_overrides() const;
  [[nodiscard]] std::vector<std::string> settings() const;
  [[nodiscard]] bool gives(std::string_view key) const;
  /// The folder of the model that gives the responses.
  [[nodiscard]] std::string name_of_model() const {
    return (model_.adapter.empty() ? model_.base : model_.adapter).string();
  }
  void show(const rlhf::EvaluationReport& report) const;
  [[nodiscard]] Json to_json(const rlhf::EvaluationReport& report) const;

  std::string checkpoint_, adapter_, data_, config_, output_;
  spec::ModelFiles model_;
  std::vector<std::string> overrides_;
  bool json_ = false;
};

// Whether the file or an override sets the key. The file is not parsed here, so it counts as
// setting every key.
bool EvalCommand::gives(std::string_view key) const {
  if (!config_.empty()) return true;
  const std::string start = format("{}=", key);
  return std::any_of(overrides_.begin(), overrides_.end(),
                     [&](const std::string& text) { return text.starts_with(start); });
}

std::vector<OwnKey> EvalCommand::own_keys() const {
  return {
      {"task", "eval", "it has one task"},
      {"trainer.best_metric", "", ""},
      {"trainer.stop_metric", "", ""},
      {"actor_rollout_ref.model.path", fs::absolute(model_.base).string(),
       "give the model as CHECKPOINT"},
      {"actor_rollout_ref.model.lora_adapter_path",
       model_.adapter.empty() ? "" : fs::absolute(model_.adapter).string(),
       "give the adapter as CHECKPOINT or with --adapter"},
      {"data.train_files", "", "give the file of prompts as DATA"},
      {"data.val_files", Json::array({fs::absolute(data_).string()}),
       "give the file of prompts as DATA"},
  };
}

// A replaced override would be silently ignored, and users would attribute the figures to it.
void EvalCommand::check_overrides() const {
  const std::vector<OwnKey> own = own_keys();
  for (const std::string& text : overrides_) {
    const auto equals = text.find('=');
    const std::string said = format("\"{}\" on the command line", printable(text));
    if (equals == std::string::npos) {
      throw Error(
          ErrorCode::kInvalidArgument,
          format("{} is not of the form key.path=value; neap eval takes one DATA file", said));
    }
    const std::string key = text.substr(0, equals);
    const auto at =
        std::find_if(own.begin(), own.end(), [&](const OwnKey& each) { return each.key == key; });
    if (at == own.end() || at->instead.empty()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has no effect on neap eval: {}", said, at->instead));
  }
}

std::vector<std::string> EvalCommand::settings() const {
  std::vector<std::string> out = overrides_;
  // JSON quoting is also valid TOML.
  for (const OwnKey& own : own_keys())
    out.push_back(format("{}={}", own.key, json_text(own.value)));
  return out;
}

Json EvalCommand::to_json(const rlhf::EvaluationReport& report) const {
  const auto source_json = [](const rlhf::SourceFigures& s) {
    Json figures = Json::object();
    for (const auto& [name, value] : s.figures) figures[name] = value;
    return Json{{"source", s.source}, {"rows", s.rows}, {"figures", std::move(figures)}};
  };
  const spec::ValidationSampling& v = report.sampling;
  Json out = {{"schema", 1},
              {"checkpoint", name_of_model()},
              {"data", data_},
              {"rows", report.evaluation.all.rows},
              {"rewards", report.rules},
              {"sampling",
               {{"n", v.n},
                {"do_sample", v.do_sample},
                {"temperature", v.temperature},
                {"top_p", v.top_p},
                {"top_k", v.top_k}}}};
  out["metrics"] = report.evaluation.metrics;
  out["all"] = source_json(report.evaluation.all);
  out["sources"] = Json::array();
  for (const rlhf::SourceFigures& source : report.evaluation.sources)
    out["sources"].push_back(source_json(source));
  out["planned_peak"] = report.planned_peak.count();
  out["measured_peak"] = report.measured_peak.count();
  out["seconds"] = report.seconds;
  return out;
}

void EvalCommand::show(const rlhf::EvaluationReport& report) const {
  if (json_) return throw_if_error(write_output(json_text(to_json(report), 1) + "\n"));
  const spec::ValidationSampling& v = report.sampling;
  const std::string how = v.do_sample
                              ? format("{} sampled, temperature {:.4g}, top_p {:.4g}, top_k {}",
                                       v.n, v.temperature, v.top_p, v.top_k)
                              : std::string("greedy");
  throw_if_error(write_output(format(
      "{} on {}: responses {}; scored by {}\n\n{}\n{}\nplanned peak   {}\nmeasured peak  {}\n",
      name_of_model(), data_, how, report.rules, figure_table(report.evaluation),
      other_metrics(report.evaluation), report.planned_peak, report.measured_peak)));
}

int EvalCommand::run() {
  model_ = model_files(checkpoint_, adapter_);
  check_overrides();
  std::error_code error;
  if (!fs::is_regular_file(data_, error))
    throw Error(ErrorCode::kNotFound, format("{} is not a file", data_));
  return run_on_ranks(config_, settings(), [&](const spec::Job& job, const rlhf::Launch& launch) {
    rlhf::EvaluationRequest request{job};
    request.any_prompt_length = !gives("data.max_prompt_length");
    request.any_response_length = !gives("data.max_response_length");
    request.responses = output_;
    const rlhf::EvaluationReport report = rlhf::evaluate_checkpoint(std::move(request), launch);
    if (launch.ranks->first()) show(report);
    return 0;
  });
}

}  // namespace

std::unique_ptr<Command> make_eval_command() {
  return std::make_unique<EvalCommand>();
}

}  // namespace neap::cli
