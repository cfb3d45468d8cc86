#include "rlhf/run/evaluate_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "bridge/no_autograd.h"
#include "plan/results/memory_plan.h"
#include "report/append_file.h"
#include "reward/ground_truth.h"
#include "rlhf/run/live_job.h"
#include "rlhf/trainer/agreed_plan.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

constexpr const char* kNotNumeric = "not_numeric";  // number of rows, in the store's notes

// Collects, while rows are read, what is needed to derive a reward function. Counts rows whose
// answer is not a number, and fails for rows without an answer.
RowCheck rule_check() {
  const auto rule = [](spec::RewardKind kind) {
    spec::RewardConfig config;
    config.functions.emplace_back().kind = kind;
    return std::make_shared<const reward::RewardSet>(
        value_or_throw(reward::RewardSet::make(config, {.max_response_length = 1})));
  };
  const auto check = [numeric = rule(spec::RewardKind::kNumeric),
                      symbolic = rule(spec::RewardKind::kSymbolic)](
                         const Json& row, data::EncodedRows& out) -> Status {
    const Json model = row.value("reward_model", Json());
    const std::string style = model.is_object() ? model.value("style", "rule") : "rule";
    if (style != "rule") {
      return {ErrorCode::kInvalidArgument,
              format("reward_model.style is \"{}\", which names no rule; give --config FILE or "
                     "reward_model.model.path=FOLDER, or add reward.functions",
                     style)};
    }
    if (const Status missing = symbolic->check(row); !missing.ok()) {
      return {ErrorCode::kInvalidArgument,
              format("{}. To score without right answers, set reward.functions or "
                     "reward_model.model.path (docs/rewards.md)",
                     missing.message())};
    }
    if (!numeric->check(row).ok()) ++out.counts[kNotNumeric];
    return {};
  };
  return {check, "any rule"};
}

// A JSON Lines file with one line per row. It has a temporary name until it is complete.
class ResponseFile {
 public:
  ResponseFile(const fs::path& path, const std::vector<PromptRow>& rows, const RewardScorer& scorer,
               const spec::Job& job)
      : temporary_(value_or_throw(TemporaryFile::create(path))),
        file_(value_or_throw(report::AppendFile::open(temporary_.path()))),
        rows_(rows),
        scorer_(scorer),
        job_(job) {}

  void add(const EvaluatedResponse& response);
  void finish() { throw_if_error(temporary_.commit(/*sync=*/true)); }

 private:
  [[nodiscard]] Json head(std::size_t row) const;

  TemporaryFile temporary_;
  report::AppendFile file_;
  const std::vector<PromptRow>& rows_;
  const RewardScorer& scorer_;
  const spec::Job& job_;
  Json responses_ = Json::array();  // of the current row
};

Json ResponseFile::head(std::size_t row) const {
  const Json& data = *rows_[row].json;
  Json out = Json::object();
  out["row"] = row;
  if (const std::string_view source = reward::data_source_of(data); !source.empty())
    out["data_source"] = source;
  out["prompt"] = data.value(job_.data.prompt_key, Json());
  if (const auto truths = reward::ground_truths(data, ""); truths.ok())
    out["ground_truth"] = truths->size() == 1 ? Json(truths->front()) : Json(*truths);
  return out;
}

void ResponseFile::add(const EvaluatedResponse& response) {
  Json line = {{"text", response.sample.response},
               {"tokens", response.sample.tokens},
               {"truncated", response.sample.truncated},
               {"score", response.outcome.score}};
  if (response.outcome.accuracy) line["acc"] = *response.outcome.accuracy;
  if (response.outcome.answer) line["answer"] = *response.outcome.answer;
  for (std::size_t c = 0; c < response.numbers.size(); ++c) {
    if (!std::isnan(response.numbers[c]))
      line["rewards"][scorer_.columns()[c].name] = response.numbers[c];
  }
  if (!response.sample.verdict.empty()) line["verdict"] = response.sample.verdict;
  responses_.push_back(std::move(line));
  if (response.turn + 1 < job_.rollout.val_kwargs.n) return;
  Json out = head(response.row);
  out["responses"] = std::exchange(responses_, Json::array());
  throw_if_error(file_.write(json_text(out) + "\n"));
}

class EvaluationRun {
 public:
  EvaluationRun(EvaluationRequest request, const Launch& launch)
      : request_(std::move(request)), job_(request_.job), launch_(launch) {}

  EvaluationReport execute();

 private:
  void read();
  void fit_to_rows(const spec::Architecture& shape);
  void build();
  void load(std::optional<train::ModelWorker>& worker, spec::ModelId model);
  void answer(EvaluationReport& report);

  EvaluationRequest request_;
  spec::Job& job_;
  const Launch& launch_;
  std::optional<JobTexts> texts_;
  std::optional<reward::RewardSet> rewards_;
  JobData data_;
  std::optional<parallel::JobGroups> groups_;
  plan::MemoryPlan plan_;
  std::optional<LiveJob> live_;
  std::optional<RewardScorer> scorer_;
  std::optional<train::ModelWorker> actor_, reward_;
  std::vector<PromptRow> prompts_;
};

// Reads rows and tokenizer, and sets lengths that are not set.
void EvaluationRun::read() {
  texts_.emplace(job_);
  const spec::Architecture& shape = texts_->context.actor;
  if (request_.any_prompt_length) job_.data.max_prompt_length = shape.longest_sequence();
  const bool find_rule = job_.reward.functions.empty() && !job_.has_reward_model();
  if (!find_rule) rewards_.emplace(make_rewards(job_, launch_.device.target.threads));
  data_ = read_data(texts_->context, find_rule ? rule_check() : reward_check(job_, *rewards_),
                    encoding_threads(launch_.device.target.threads, launch_.ranks->size()));
  if (find_rule) {
    job_.reward.functions.emplace_back().kind = data_.held_out.count(kNotNumeric) == 0
                                                    ? spec::RewardKind::kNumeric
                                                    : spec::RewardKind::kSymbolic;
    rewards_.emplace(make_rewards(job_, launch_.device.target.threads));
    if (launch_.ranks->first())
      log::info(format("No reward is configured: responses are scored by rule \"{}\"",
                       to_string(job_.reward.functions.front().kind)));
  }
  prompts_ = read_prompts(data_.held_out);
  fit_to_rows(shape);
}

void EvaluationRun::fit_to_rows(const spec::Architecture& shape) {
  if (request_.any_prompt_length) {
    std::size_t longest = 1;
    for (const PromptRow& prompt : prompts_) longest = std::max(longest, prompt.tokens.size());
    job_.data.max_prompt_length = static_cast<std::int64_t>(longest);
  }
  if (request_.any_response_length) {
    constexpr std::int64_t kLongestResponse = 1024;
    job_.data.max_response_length = std::clamp<std::int64_t>(
        shape.longest_sequence() - job_.data.max_prompt_length, 1, kLongestResponse);
  }
  if (job_.max_sequence_length() > shape.longest_sequence()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("Prompts of {} tokens and responses of {} are over the model's {} "
               "positions; set data.max_response_length to at most {}",
               job_.data.max_prompt_length, job_.data.max_response_length, shape.longest_sequence(),
               shape.longest_sequence() - job_.data.max_prompt_length));
  }
  // A cache for more sequences than the file has would waste memory.
  const std::int64_t ranks = job_.data_ranks();
  const std::int64_t most = (std::ssize(prompts_) + ranks - 1) / ranks * job_.rollout.val_kwargs.n;
  job_.rollout.batch_size = std::min(job_.rollout_batch(), most);
}

void EvaluationRun::build() {
  spec::apply(plan_.changes, job_);
  throw_if_error(job_.validate());
  live_.emplace(LiveInputs{texts_->context, data_, *rewards_}, launch_.device, plan_, *groups_);
  scorer_.emplace(live_->context());
  live_->run([&] {
    load(actor_, spec::ModelId::kActor);
    load(reward_, spec::ModelId::kReward);
  });
  launch_.device.target.folders.close();
}

void EvaluationRun::load(std::optional<train::ModelWorker>& worker, spec::ModelId model) {
  const Context& context = live_->context();
  if (context.recipe.find(model) == nullptr) return;
  worker.emplace(live_->runtime(), groups_->of(model), context.worker_spec(model));
  worker->load();
}

void EvaluationRun::answer(EvaluationReport& report) {
  const bool first = launch_.ranks->first();
  std::optional<ResponseFile> file;
  if (first && !request_.responses.empty())
    file.emplace(request_.responses, prompts_, *scorer_, job_);
  EvaluationSetup setup{.actor = *actor_,
                        .reward_model = reward_ ? &*reward_ : nullptr,
                        .functions = *scorer_,
                        .sampling = job_.rollout.val_kwargs,
                        .key = validation_key(job_)};
  std::optional<Progress> progress;
  if (first) {
    const std::size_t mine = live_->context().share_of(prompts_.size()).size();
    progress.emplace("eval", mine * static_cast<std::size_t>(setup.sampling.n), "responses");
    progress->update(0);
    setup.on_progress = [&](std::size_t ended) { progress->update(ended); };
  }
  if (file) setup.on_response = [&](const EvaluatedResponse& response) { file->add(response); };
  report.evaluation = evaluate(live_->context(), prompts_, setup);
  if (progress) progress->finish();
  if (file) file->finish();
}

EvaluationReport EvaluationRun::execute() {
  EvaluationReport report;
  parallel::run_collectively(*launch_.ranks, [&] { read(); });
  groups_.emplace(*launch_.ranks, job_);
  plan_ = agreed_plan(job_, launch_.device.target, *launch_.ranks);
  parallel::run_collectively(*launch_.ranks, [&] { build(); });
  const auto start = std::chrono::steady_clock::now();
  live_->run([&] { answer(report); });
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.sampling = job_.rollout.val_kwargs;
  for (const spec::RewardFunctionConfig& function : job_.reward.functions)
    report.rules += (report.rules.empty() ? "" : ", ") + function.metric_name();
  if (reward_) report.rules += (report.rules.empty() ? "" : ", ") + std::string("reward model");
  report.planned_peak = plan_.peak;
  report.measured_peak = live_->runtime().peak();
  return report;
}

}  // namespace

EvaluationReport evaluate_checkpoint(EvaluationRequest request, const Launch& launch) {
  const bridge::NoAutograd no_autograd;
  return EvaluationRun(std::move(request), launch).execute();
}

}  // namespace neap::rlhf
