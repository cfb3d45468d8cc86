#include "spec/types/reward_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/format.h"
#include "spec/keys/job_keys.h"
#include "spec/types/names.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

using Keys = std::vector<std::string_view>;

struct KindInfo {
  std::string_view name;
  RewardKind value;
  Keys reads;     // keys in addition to those that all kinds read
  Keys required;  // subset of `reads`
};

const std::array<KindInfo, 9>& kinds() {
  static const std::array<KindInfo, 9> kKinds = {
      {{"exact",
        RewardKind::kExact,
        {"ground_truth", "extract", "pattern", "ignore_case", "correct_score", "wrong_score",
         "on_failure", "default_score"},
        {}},
       {"numeric",
        RewardKind::kNumeric,
        {"ground_truth", "extract", "pattern", "tolerance", "correct_score", "wrong_score",
         "on_failure", "default_score"},
        {}},
       {"symbolic",
        RewardKind::kSymbolic,
        {"ground_truth", "extract", "pattern", "correct_score", "wrong_score", "on_failure",
         "default_score"},
        {}},
       {"regex",
        RewardKind::kRegex,
        {"pattern", "correct_score", "wrong_score", "on_failure", "default_score"},
        {"pattern"}},
       {"format", RewardKind::kFormat, {"style", "correct_score", "wrong_score"}, {}},
       {"length",
        RewardKind::kLength,
        {"formula", "max_length", "buffer_length", "penalty_factor"},
        {"buffer_length"}},
       {"program",
        RewardKind::kProgram,
        {"ground_truth", "command", "env", "memory_limit", "file_size_limit", "batch_size",
         "concurrency", "timeout", "retries", "on_failure", "default_score", "log"},
        {"command"}},
       {"http",
        RewardKind::kHttp,
        {"ground_truth", "url", "headers", "batch_size", "concurrency", "timeout", "retries",
         "on_failure", "default_score", "log"},
        {"url"}},
       {"python",
        RewardKind::kPython,
        {"ground_truth", "path", "function", "command", "env", "memory_limit", "file_size_limit",
         "batch_size", "concurrency", "timeout", "retries", "on_failure", "default_score", "log"},
        {"path"}}}};
  return kKinds;
}
constexpr Named<Extraction> kExtractions[] = {
    {"whole", Extraction::kWhole},
    {"hashes", Extraction::kHashes},
    {"boxed", Extraction::kBoxed},
    {"answer_tag", Extraction::kAnswerTag},
    {"answer_line", Extraction::kAnswerLine},
    {"last_number", Extraction::kLastNumber},
    {"pattern", Extraction::kPattern},
};
bool contains(const Keys& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Keys of a program that scores responses.
void bind_service(ConfigTable& t, RewardFunctionConfig& f) {
  t.bind(
      "command", &f.command,
      "program: the program and its arguments, started in the configuration's folder. python: the "
      "interpreter, if it is not the `python3` on PATH, or a wrapper before it.");
  t.bind(
      "path", &f.path,
      "File with the function, from the configuration's folder. It can import files next to it.");
  t.bind("function", &f.function,
         "Name of the function. It has the parameters of verl, `(data_source, solution_str, "
         "ground_truth, extra_info)`, or of TRL, `(completions, prompts, **columns)`.");
  t.bind("env", &f.env,
         "Environment variables for the program, in addition to those that programs need to start "
         "(docs/rewards.md lists them): `NAME`, `PREFIX*`, `NAME=VALUE`; `*` is all.");
  t.bind("memory_limit", &f.memory_limit,
         "Private memory of each of the program's processes, at most (RLIMIT_DATA); 0: half of the "
         "machine's.");
  t.bind("file_size_limit", &f.file_size_limit,
         "Largest file that the program can write (RLIMIT_FSIZE); 0: no limit.");
  t.bind("url", &f.url, "Address that requests are posted to, with http:// or https://.");
  t.bind("headers", &f.headers,
         "Further headers, as `Authorization: Bearer $TOKEN`; `$NAME` is the environment "
         "variable NAME, so that no secret is in a checkpoint.");
  t.bind("batch_size", &f.batch_size, "Responses of one request, at most.")
      .in("responses")
      .at_least(1);
  t.bind("concurrency", &f.concurrency,
         "Requests at the same time, with a copy of the program for each.")
      .at_least(1)
      .at_most(256);
  t.bind("timeout", &f.timeout, "Longest time until the reply to a request is complete.")
      .in("seconds")
      .at_least(0.01)
      .at_most(86400);
  t.bind("retries", &f.retries, "How often a request is sent again after a failure.")
      .at_least(0)
      .at_most(100);
  t.bind("on_failure", &f.on_failure,
         "program, http, python: after all `retries`; others: where `pattern` takes too long. "
         "`stop`: the run saves earlier steps and fails; `default`: the response gets "
         "`default_score`.")
      .one_of({"stop", "default"});
  t.bind("default_score", &f.default_score, "See `on_failure`.");
  t.bind(
      "log", &f.log,
      "Numbers of the reply other than `score` that metrics show (`rewards/NAME/KEY`). `acc` is 1 "
      "for a right answer.");
}

// A kind rejects keys that only other kinds read.
void require_kinds(ConfigTable& t, const RewardFunctionConfig& f) {
  const auto only = [&](std::string_view key, ConfigCondition condition) {
    condition.unread = Unread::kMistake;
    t.at(key).only(std::move(condition));
  };
  std::map<std::string_view, std::vector<Json>> readers;
  for (const KindInfo& kind : kinds())
    for (const std::string_view key : kind.reads) readers[key].emplace_back(kind.name);
  for (auto& [key, values] : readers) only(key, {.key = "kind", .values = std::move(values)});
  const auto extracts = [&f] {
    const bool reads = contains(row_of(kinds(), f.kind).reads, "extract");
    return !reads || std::find(f.extract.begin(), f.extract.end(), "pattern") != f.extract.end();
  };
  only("pattern", {.key = "extract", .holds = extracts, .words = "a list with \"pattern\""});
  only("default_score", {.key = "on_failure", .values = {"default"}});
  only("penalty_factor", {.key = "formula", .values = {"verl", "openrlhf"}});
}

void bind_function(ConfigTable& t, RewardFunctionConfig& f) {
  bind_enum(t, "kind", &f.kind, parse_reward_kind, "The function's rule (docs/rewards.md).")
      .one_of(reward_kind_names());
  t.bind("name", &f.name, "Name in metrics (`rewards/NAME/mean`); empty: the kind.");
  t.bind("weight", &f.weight, "The reward is the sum of each function's score times its weight.");
  t.bind("data_sources", &f.data_sources,
         "Scores only rows whose `data_source` is one of these; empty: every row.");
  t.bind("ground_truth", &f.ground_truth,
         "Field of a row with the ground truth, with dots into objects; empty: the first of "
         "`reward_model.ground_truth`, `ground_truth`, `answer`, `solution`, "
         "`label` that the row has.");
  t.bind("extract", &f.extract,
         "Where the answer is in a response; the first place that has one "
         "counts. `hashes`: after the last `####`; `pattern`: group 1 of the last match of "
         "`pattern`. Empty: by kind (docs/rewards.md).")
      .one_of(extraction_names());
  t.bind("pattern", &f.pattern, "Regular expression (PCRE2, UTF-8).");
  t.bind("ignore_case", &f.ignore_case, "Upper and lower case (ASCII) are the same.");
  t.bind("tolerance", &f.tolerance,
         "Largest difference, relative to the ground truth; 0: equal as decimal numbers.")
      .at_least(0)
      .at_most(1);
  t.bind("correct_score", &f.correct_score, "Score of a right answer, or of a match.");
  t.bind("wrong_score", &f.wrong_score, "Score of any other response.");
  t.bind("style", &f.style,
         "`think`: `<think>...</think>` at the start; `think_answer`: then "
         "`<answer>...</answer>` up to the end; every tag once.")
      .one_of({"think", "think_answer"});
  t.bind("formula", &f.formula,
         "Score of n tokens. `verl` (DAPO): min(0, (L - b - n) / b f), with f = "
         "`penalty_factor`; `trl`: with f = 1, at least -1; `openrlhf`: at least -f.")
      .one_of({"verl", "trl", "openrlhf"});
  t.bind("max_length", &f.max_length, "L in `formula`; 0: `data.max_response_length`.")
      .in("tokens")
      .at_least(0);
  t.bind("buffer_length", &f.buffer_length, "b in `formula`; the penalty begins at L - b.")
      .in("tokens")
      .at_least(0);
  t.bind("penalty_factor", &f.penalty_factor, "f in `formula`.").at_least(0);
  bind_service(t, f);
  require_kinds(t, f);
}

Status validate_function(const ConfigTable& table, const std::string& at,
                         const RewardFunctionConfig& f) {
  const KindInfo& kind = row_of(kinds(), f.kind);
  const auto is_set = [&](std::string_view key) {
    return table.find(format("{}.{}", at, key))->is_set;
  };
  if (!is_set("kind"))
    return wrong(format("{}.kind is missing; it can be {}", at, joined(names_of(kinds()), ", ")));
  for (const std::string_view key : kind.required) {
    if (!is_set(key))
      return wrong(format("{}.{} is missing; kind \"{}\" needs it", at, key, kind.name));
  }
  const bool by_pattern =
      std::find(f.extract.begin(), f.extract.end(), "pattern") != f.extract.end();
  if (by_pattern && f.pattern.empty())
    return wrong(format("{}.extract has \"pattern\", but {}.pattern is empty", at, at));
  if (f.kind == RewardKind::kHttp && !f.url.starts_with("http://") &&
      !f.url.starts_with("https://"))
    return wrong(format("{}.url is \"{}\"; it begins with http:// or https://", at, f.url));
  if (f.kind == RewardKind::kLength && f.buffer_length == 0)
    return wrong(format("{}.buffer_length is 0; the least is 1", at));
  return {};
}

}  // namespace

std::vector<std::string> reward_kind_names() {
  return names_of(kinds());
}

std::string_view to_string(RewardKind kind) {
  return name_of(kinds(), kind);
}

Result<RewardKind> parse_reward_kind(std::string_view name) {
  return parse_name(kinds(), name, "kind");
}

std::vector<std::string> extraction_names() {
  return names_of(kExtractions);
}

Result<Extraction> parse_extraction(std::string_view name) {
  return parse_name(kExtractions, name, "extract");
}

void RewardConfig::bind(ConfigTable& table) {
  table.bind_list<RewardFunctionConfig>(
      "reward.functions", &functions, bind_function,
      "Functions that score responses, in ppo and grpo; docs/rewards.md explains them. A kind that "
      "does not read a key refuses it.");
}

Status RewardConfig::validate(const ConfigTable& table) const {
  std::set<std::string> names;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const std::string at = format("reward.functions.{}", i);
    NEAP_TRY(validate_function(table, at, functions[i]));
    if (!names.insert(functions[i].metric_name()).second)
      return wrong(format("{}.name: \"{}\" is another function's name, too; give each its own", at,
                          functions[i].metric_name()));
  }
  return {};
}

}  // namespace neap::spec
