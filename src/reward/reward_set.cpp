#include "reward/reward_set.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "base/format.h"
#include "base/text.h"
#include "reward/failures.h"
#include "reward/ground_truth.h"
#include "reward/http.h"
#include "reward/program.h"
#include "reward/rules.h"
#include "reward/service.h"

namespace neap::reward {

std::string_view data_source_of(const Json& row) {
  const auto at = row.find("data_source");
  return at != row.end() && at->is_string() ? at->get_ref<const std::string&>()
                                            : std::string_view();
}

Result<std::unique_ptr<RewardFunction>> make_function(const spec::RewardFunctionConfig& config,
                                                      const Setting& setting) {
  if (config.kind == spec::RewardKind::kProgram || config.kind == spec::RewardKind::kPython) {
    NEAP_TRY_ASSIGN(auto program, start_program(config, setting));
    return make_service(config, setting, std::move(program));
  }
  if (config.kind == spec::RewardKind::kHttp) {
    NEAP_TRY_ASSIGN(auto server, make_http(config, setting));
    return make_service(config, setting, std::move(server));
  }
  return make_rule(config, setting);
}

Result<RewardSet> RewardSet::make(const spec::RewardConfig& config, const Setting& setting) {
  RewardSet out;
  out.scored_by_model_ = setting.scored_by_model;
  for (const spec::RewardFunctionConfig& each : config.functions) {
    const std::string name = each.metric_name();
    auto function = make_function(each, setting);
    if (!function.ok())
      return Status(function.status()).with_context(format("making reward function \"{}\"", name));
    Entry entry{each, std::move(*function), out.columns_.size()};
    out.columns_.push_back({name, each.weight, false, false});
    for (const std::string& part : entry.function->part_names())
      out.columns_.push_back({format("{}/{}", name, part), 0, true, part == "acc"});
    out.functions_.push_back(std::move(entry));
  }
  return out;
}

bool RewardSet::scores(const Entry& entry, const Json& row) {
  const auto& sources = entry.config.data_sources;
  return sources.empty() ||
         std::find(sources.begin(), sources.end(), data_source_of(row)) != sources.end();
}

Status RewardSet::check(const Json& row) const {
  bool any = false;
  for (const Entry& entry : functions_) {
    if (!scores(entry, row)) continue;
    any = true;
    NEAP_TRY(entry.function->check(row).with_context(
        format("checking it for reward function \"{}\"", entry.config.metric_name())));
  }
  if (any) return {};
  return {ErrorCode::kInvalidArgument,
          format("no reward function scores rows of data_source \"{}\"; add it to a function's "
                 "data_sources",
                 data_source_of(row))};
}

Result<std::vector<RewardSet::FunctionScores>> RewardSet::score_each(
    std::span<const Response> responses) {
  std::vector<FunctionScores> out;
  for (Entry& entry : functions_) {
    FunctionScores& of = out.emplace_back();
    of.name = entry.config.metric_name();
    of.scores.resize(responses.size());
    std::vector<Response> mine;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < responses.size(); ++i) {
      if (!scores(entry, *responses[i].row)) continue;
      mine.push_back(responses[i]);
      places.push_back(i);
    }
    if (mine.empty()) continue;
    const auto start = std::chrono::steady_clock::now();
    auto scored = entry.function->score(mine);
    of.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!scored.ok())
      return Status(scored.status()).with_context(format("computing reward \"{}\"", of.name));
    for (std::size_t i = 0; i < mine.size(); ++i) of.scores[places[i]] = std::move((*scored)[i]);
  }
  NEAP_TRY(complete(responses, out));
  return out;
}

// The functions that count for a response, if none of them gives it a number.
std::vector<std::size_t> RewardSet::silent_about(const Json& row, std::size_t response,
                                                 const std::vector<FunctionScores>& each) const {
  std::vector<std::size_t> out;
  for (std::size_t f = 0; f < functions_.size(); ++f) {
    if (functions_[f].config.weight == 0 || !scores(functions_[f], row)) continue;
    const std::optional<Score>& score = each[f].scores[response];
    if (score && !std::isnan(score->value)) return {};
    out.push_back(f);
  }
  return out;
}

// A missing score must not count as 0.
Status RewardSet::complete(std::span<const Response> responses,
                           std::vector<FunctionScores>& each) const {
  if (scored_by_model_) return {};
  std::map<std::size_t, std::size_t>
      defaults;  // functions, and the number of default scores of each
  for (std::size_t i = 0; i < responses.size(); ++i) {
    const Response& response = responses[i];
    const std::vector<std::size_t> silent = silent_about(*response.row, i, each);
    if (silent.empty()) continue;
    const std::size_t f = silent.front();
    const spec::RewardFunctionConfig& config = functions_[f].config;
    if (config.on_failure != "default")
      return {ErrorCode::kInvalidArgument,
              format("Reward \"{}\" gave None for a response, and no other function scores it; the "
                     "row is {}, the response \"{}\". Return a number, or set on_failure = "
                     "\"default\"",
                     each[f].name, response.where, excerpt(response.text, 120))};
    each[f].scores[i]->value = config.default_score;
    ++defaults[f];
  }
  for (const auto& [f, count] : defaults)
    warn_of_defaults(functions_[f].config, count, responses.size(), "it gave None for them");
  return {};
}

std::string RewardSet::reason(std::size_t function, const Response& response,
                              const Score& score) const {
  if (!score.reason.empty()) return score.reason;
  const Entry& entry = functions_.at(function);
  const std::vector<std::string> parts = entry.function->part_names();
  if (std::find(parts.begin(), parts.end(), "answered") == parts.end()) return {};
  const auto answer = entry.function->answer(response);
  std::string out = answer ? "answer " + *answer : "no answer";
  const auto truths = ground_truths(*response.row, entry.config.ground_truth);
  if (!truths.ok()) return out;
  out += "; right: ";
  for (const std::string& truth : *truths)
    out += (&truth == &truths->front() ? "" : " or ") + truth;
  return out;
}

Result<std::vector<std::vector<double>>> RewardSet::score(std::span<const Response> responses) {
  NEAP_TRY_ASSIGN(const auto each, score_each(responses));
  std::vector<std::vector<double>> out(
      responses.size(),
      std::vector<double>(columns_.size(), std::numeric_limits<double>::quiet_NaN()));
  for (std::size_t f = 0; f < each.size(); ++f) {
    const auto first = static_cast<std::ptrdiff_t>(functions_[f].first_column);
    for (std::size_t i = 0; i < responses.size(); ++i) {
      const std::optional<Score>& score = each[f].scores[i];
      if (!score) continue;
      out[i][functions_[f].first_column] = score->value;
      std::copy(score->parts.begin(), score->parts.end(), out[i].begin() + first + 1);
    }
  }
  return out;
}

std::optional<double> RewardSet::accuracy(std::span<const double> numbers) const {
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (columns_[i].accuracy && !std::isnan(numbers[i])) return numbers[i];
  return std::nullopt;
}

std::optional<std::string> RewardSet::answer(const Response& response) const {
  for (const Entry& entry : functions_) {
    if (!scores(entry, *response.row)) continue;
    if (auto answer = entry.function->answer(response)) return answer;
  }
  return std::nullopt;
}

double RewardSet::total(std::span<const double> numbers) const {
  double sum = 0;
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (!columns_[i].part && !std::isnan(numbers[i])) sum += columns_[i].weight * numbers[i];
  return sum;
}

}  // namespace neap::reward
