// neap reward: scores given responses with a job's reward functions, as training does.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/text_table.h"
#include "cli/command.h"
#include "cli/program_commands.h"
#include "data/fields.h"
#include "data/row_source.h"
#include "reward/reward_set.h"
#include "spec/job/job.h"

namespace neap::cli {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kPart = 256;  // responses scored at once
constexpr std::array<std::string_view, 6> kResponseKeys = {
    "response", "responses", "completion", "completions", "output", "solution_str"};

struct GivenResponse {
  std::shared_ptr<const Json> row;
  std::string where, text;
  std::int64_t tokens = 0;
  bool truncated = false;
};

// Summary of one function over all responses.
struct Summary {
  std::string name;
  std::size_t scored = 0;
  double sum = 0, least = std::numeric_limits<double>::infinity(), most = -least, seconds = 0;
  void add(double value) {
    ++scored;
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  [[nodiscard]] Json to_json() const {
    Json out = {{"name", name}, {"scored", scored}, {"seconds", seconds}};
    if (scored > 0)
      out.update({{"mean", sum / static_cast<double>(scored)}, {"min", least}, {"max", most}});
    return out;
  }
};

class RewardCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "reward"; }
  [[nodiscard]] std::string summary() const override {
    return "Score given responses by reward functions, to test the functions";
  }
  void declare(CLI::App& app) override {
    app.add_option(
           "FILE", file_,
           "rows of training data with responses (JSONL or Parquet), or output of `neap eval "
           "--output`")
        ->required();
    app.add_option(
        "OVERRIDES", overrides_,
        "key.path=value, as reward.functions.0.kind=numeric or data.prompt_key=question");
    app.add_option("--config", config_, "configuration file with [[reward.functions]]")
        ->type_name("CONFIG.toml");
    app.add_option("--function", functions_,
                   "a Python function: file, or file:function; may be given several times")
        ->type_name("FILE.py[:NAME]")
        ->allow_extra_args(false);  // the following words are overrides
    app.add_option(
        "--response-key", response_key_,
        "field with the response; default: the first of response, responses, completion, "
        "completions, output, solution_str that a row has");
    app.add_option("--show", show_, "responses that are printed before the summary")
        ->default_str("10");
    app.add_flag("--json", json_, "print every response, score and reason as JSON");
  }
  int run() override {
    const Status status = score_file();
    return status.ok() ? 0 : fail(status);
  }

 private:
  [[nodiscard]] Status score_file();
  [[nodiscard]] Result<reward::RewardSet> make_set(spec::Job& job) const;
  [[nodiscard]] Status read(const data::RawRow& raw, const std::string& where,
                            const reward::RewardSet& set);
  [[nodiscard]] Status score_part(reward::RewardSet& set);
  void take(const std::vector<reward::RewardSet::FunctionScores>& scored, std::size_t i,
            const reward::RewardSet& set, const reward::Response& response);
  [[nodiscard]] Status print() const;

  std::string file_, config_, response_key_;
  std::vector<std::string> overrides_, functions_;
  std::size_t show_ = 10;
  bool json_ = false;
  bool by_length_ = false;  // some function counts tokens
  std::vector<GivenResponse> part_;
  std::vector<Summary> summaries_;  // one per function, then their weighted sum
  std::vector<double> weights_;
  Json responses_ = Json::array();
  std::string shown_;
};

Result<reward::RewardSet> RewardCommand::make_set(spec::Job& job) const {
  ConfigTable table = job.bind();
  if (!config_.empty()) NEAP_TRY(table.load_file(config_));
  job.folder = fs::path(config_).parent_path();
  for (const std::string& text : functions_) {
    const auto colon = text.rfind(':');
    const std::string at = format("reward.functions.{}", job.reward.functions.size());
    const std::string path = fs::absolute(text.substr(0, colon)).string();
    std::string name = fs::path(path).stem().string();
    const auto& others = job.reward.functions;
    // If a file has several functions, each has its own name.
    if (colon != std::string::npos &&
        std::any_of(others.begin(), others.end(), [&](const auto& f) { return f.name == name; }))
      name = text.substr(colon + 1);
    NEAP_TRY(table.apply_override(at + ".kind=python"));
    NEAP_TRY(table.apply_override(format("{}.path={}", at, json_text(Json(path)))));
    NEAP_TRY(table.apply_override(format("{}.name={}", at, json_text(Json(name)))));
    if (colon != std::string::npos)
      NEAP_TRY(
          table.apply_override(format("{}.function={}", at, Json(text.substr(colon + 1)).dump())));
  }
  for (const std::string& text : overrides_) NEAP_TRY(table.apply_override(text));
  NEAP_TRY(job.reward.validate(table));
  if (job.reward.functions.empty())
    return Status(ErrorCode::kInvalidArgument,
                  "No reward function: give --function FILE.py, --config CONFIG.toml with "
                  "[[reward.functions]], or reward.functions.0.kind=numeric");
  return reward::RewardSet::make(job.reward,
                                 {.max_response_length = job.data.max_response_length,
                                  .prompt_key = job.data.prompt_key,
                                  .folder = job.folder,
                                  .threads = std::max(std::thread::hardware_concurrency(), 1U),
                                  .stop = InterruptScope::requested,
                                  .scored_by_model = job.has_reward_model()});
}

// Text of a response in common file formats: a text, a message, a list that ends with a message, or
// an object with "text".
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && !value.empty()) return text_of(value.back());
  if (value.is_object()) {
    for (const char* key : {"text", "content"})
      if (const auto at = value.find(key); at != value.end() && at->is_string())
        return at->get<std::string>();
  }
  return {};
}

Status RewardCommand::read(const data::RawRow& raw, const std::string& where,
                           const reward::RewardSet& set) {
  NEAP_TRY_ASSIGN(Json parsed, data::parse_row(raw.text, where));
  const auto row = std::make_shared<const Json>(std::move(parsed));
  std::string key = response_key_;
  for (const std::string_view usual : kResponseKeys)
    if (key.empty() && row->contains(std::string(usual))) key = usual;
  const auto field = row->find(key);
  if (key.empty() || field == row->end())
    return {ErrorCode::kInvalidArgument,
            format("{}: the row has no response{}; name its field with --response-key", where,
                   key.empty() ? std::string() : format(" in field \"{}\"", key))};
  NEAP_TRY(set.check(*row).with_context(format("checking {}", where)));
  const bool several = field->is_array() && !data::is_conversation(*field);
  for (const Json& each : several ? *field : Json::array({*field})) {
    const Json& facts = each.is_object() ? each : *row;
    GivenResponse response{row, where, text_of(each)};
    const auto number = [&](const char* name) {
      const auto at = facts.find(name);
      return at != facts.end() && at->is_number_integer() ? at->get<std::int64_t>()
                                                          : std::int64_t{-1};
    };
    response.tokens = std::max(number("tokens"), number("response_length"));
    const auto cut = facts.find("truncated");
    response.truncated = cut != facts.end() && cut->is_boolean() && cut->get<bool>();
    if (by_length_ && response.tokens < 0)
      return {
          ErrorCode::kInvalidArgument,
          format("{}: kind \"length\" needs the response's number of tokens in field \"tokens\"",
                 where)};
    part_.push_back(std::move(response));
  }
  return {};
}

void RewardCommand::take(const std::vector<reward::RewardSet::FunctionScores>& scored,
                         std::size_t i, const reward::RewardSet& set,
                         const reward::Response& response) {
  double total = 0;
  Json functions = Json::object();
  std::string lines;
  for (std::size_t f = 0; f < scored.size(); ++f) {
    const auto& score = scored[f].scores[i];
    if (!score || std::isnan(score->value)) continue;
    summaries_[f].add(score->value);
    total += weights_[f] * score->value;
    const std::string reason = set.reason(f, response, *score);
    functions[scored[f].name] = {{"score", score->value}, {"reason", reason}};
    lines += format("  {:<20} {:<8.4g} {}\n", scored[f].name, score->value, printable(reason));
  }
  summaries_.back().add(total);
  const std::size_t number = summaries_.back().scored;
  if (number <= show_)
    shown_ += format("{}  reward {:.4g}\n  {:<20} {}\n{}", response.where, total, "response",
                     printable(excerpt(response.text, 100)), lines);
  if (json_)
    responses_.push_back({{"where", response.where},
                          {"response", response.text},
                          {"reward", total},
                          {"functions", std::move(functions)}});
}

Status RewardCommand::score_part(reward::RewardSet& set) {
  std::vector<reward::Response> responses;
  for (const GivenResponse& each : part_)
    responses.push_back({each.row.get(), each.text, std::max<std::int64_t>(each.tokens, 0),
                         each.truncated, each.where});
  NEAP_TRY_ASSIGN(const auto scored, set.score_each(responses));
  for (std::size_t f = 0; f < scored.size(); ++f) {
    summaries_[f].name = scored[f].name;
    summaries_[f].seconds += scored[f].seconds;
    summaries_.back().seconds += scored[f].seconds;
  }
  for (std::size_t i = 0; i < responses.size(); ++i) take(scored, i, set, responses[i]);
  part_.clear();
  return {};
}

Status RewardCommand::score_file() {
  const InterruptScope interrupts("\nStopping. Once more to stop at once.\n");
  spec::Job job;
  NEAP_TRY_ASSIGN(reward::RewardSet set, make_set(job));
  for (const spec::RewardFunctionConfig& each : job.reward.functions) {
    weights_.push_back(each.weight);
    by_length_ = by_length_ || each.kind == spec::RewardKind::kLength;
  }
  summaries_.resize(weights_.size() + 1);
  summaries_.back().name = "reward";
  auto rows = data::RowSource::open(file_);
  if (!rows.ok()) return data::wrong_input(rows.status());
  Progress progress("Scoring", 0, "responses");
  for (data::RawRow raw;;) {
    const Result<bool> more = (*rows)->next(raw);
    if (!more.ok()) return data::wrong_input(more.status());
    if (*more) {
      const Status status = read(raw, (*rows)->where(raw.number), set);
      if (!status.ok()) return data::wrong_input(status);
    }
    if (!part_.empty() && (part_.size() >= kPart || !*more)) NEAP_TRY(score_part(set));
    progress.update(summaries_.back().scored);
    if (!*more) break;
  }
  progress.finish();
  if (summaries_.back().scored == 0)
    return {ErrorCode::kInvalidArgument, format("{} has no rows", file_)};
  return print();
}

Status RewardCommand::print() const {
  if (json_) {
    Json summary = Json::array();
    for (const Summary& each : summaries_) summary.push_back(each.to_json());
    const Json out = {{"schema", 1}, {"responses", responses_}, {"summary", std::move(summary)}};
    return write_output(json_text(out, 1) + "\n");
  }
  std::vector<std::vector<std::string>> table = {
      {"function", "scored", "mean", "min", "max", "seconds", "ms each"}};
  for (const Summary& s : summaries_) {
    const auto shown = [&](double value) { return s.scored == 0 ? "-" : format("{:.4g}", value); };
    const auto count = static_cast<double>(std::max<std::size_t>(s.scored, 1));
    table.push_back({s.name, format("{}", s.scored), shown(s.sum / count), shown(s.least),
                     shown(s.most), format("{:.2f}", s.seconds),
                     format("{:.3g}", 1e3 * s.seconds / count)});
  }
  return write_output(shown_ + (shown_.empty() ? "" : "\n") + table_text(table));
}

}  // namespace

std::unique_ptr<Command> make_reward_command() {
  return std::make_unique<RewardCommand>();
}

}  // namespace neap::cli
