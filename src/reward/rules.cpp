#include "reward/rules.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include "base/format.h"
#include "base/parallel_for.h"
#include "reward/failures.h"
#include "reward/number.h"
#include "reward/rule.h"

namespace neap::reward {
namespace {

using spec::RewardKind;

// With fewer responses a thread costs more than it saves.
constexpr std::size_t kResponsesOfAThread = 16;

class PatternRule final : public Rule {
 public:
  PatternRule(const spec::RewardFunctionConfig& config, const Setting& setting, Pattern pattern)
      : Rule(config, setting), pattern_(std::move(pattern)) {}
  [[nodiscard]] std::vector<std::string> part_names() const override { return {}; }

 private:
  [[nodiscard]] Result<Score> score_one(const Response& response, const OfRow*) const override {
    NEAP_TRY_ASSIGN(const bool found, pattern_.found_in(response.text));
    return Score{value_of(found), {}};
  }
  Pattern pattern_;
};

// Requires <think>...</think> followed by <answer>...</answer>, with every tag once.
class FormatRule final : public Rule {
 public:
  using Rule::Rule;
  [[nodiscard]] std::vector<std::string> part_names() const override { return {}; }

 private:
  [[nodiscard]] static std::size_t count(std::string_view text, std::string_view tag) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(tag, at)) != std::string_view::npos; at += tag.size())
      ++n;
    return n;
  }
  // The text after the tags of `name`. nullopt unless `text` begins with them.
  [[nodiscard]] static std::optional<std::string_view> behind(std::string_view text,
                                                              std::string_view name) {
    const std::string open = format("<{}>", name);
    const std::string close = format("</{}>", name);
    if (!text.starts_with(open) || count(text, open) != 1 || count(text, close) != 1)
      return std::nullopt;
    return text.substr(text.find(close) + close.size());
  }
  [[nodiscard]] bool has_form(std::string_view text) const {
    const auto rest = behind(trimmed(text), "think");
    if (!rest) return false;
    if (config().style == "think") return true;
    const auto end = behind(trimmed(*rest), "answer");
    return end && trimmed(*end).empty();
  }
  [[nodiscard]] Result<Score> score_one(const Response& response, const OfRow*) const override {
    return Score{value_of(has_form(response.text)), {}};
  }
};

class LengthRule final : public Rule {
 public:
  LengthRule(const spec::RewardFunctionConfig& config, const Setting& setting,
             std::int64_t max_length)
      : Rule(config, setting), max_length_(max_length) {}
  [[nodiscard]] std::vector<std::string> part_names() const override { return {"over"}; }

 private:
  [[nodiscard]] Result<Score> score_one(const Response& response, const OfRow*) const override {
    const std::int64_t buffer = config().buffer_length;
    const std::int64_t over = response.tokens - (max_length_ - buffer);
    double share =
        static_cast<double>(std::max<std::int64_t>(over, 0)) / static_cast<double>(buffer);
    if (config().formula != "verl") share = std::min(share, 1.0);
    const double factor = config().formula == "trl" ? 1.0 : config().penalty_factor;
    return Score{over > 0 ? -share * factor : 0.0, {over > 0 ? 1.0 : 0.0}};
  }
  std::int64_t max_length_;
};

}  // namespace

Result<std::vector<Score>> Rule::score(std::span<const Response> responses) {
  std::unordered_map<const Json*, std::size_t> numbers;  // row numbers
  std::vector<const Json*> rows;
  for (const Response& response : responses)
    if (numbers.emplace(response.row, rows.size()).second) rows.push_back(response.row);
  const std::size_t threads = std::min(threads_, responses.size() / kResponsesOfAThread + 1);
  std::vector<std::unique_ptr<const OfRow>> of_rows(rows.size());
  parallel_for(rows.size(), threads, [&](std::size_t i) { of_rows[i] = read_row(*rows[i]); });
  std::vector<Score> out(responses.size());
  std::vector<Status> failures(responses.size());
  parallel_for(responses.size(), threads, [&](std::size_t i) {
    auto score = score_one(responses[i], of_rows[numbers.find(responses[i].row)->second].get());
    if (score.ok())
      out[i] = *std::move(score);
    else
      failures[i] = score.status();
  });
  NEAP_TRY(replace_failed(responses, failures, out));
  return out;
}

Status Rule::replace_failed(std::span<const Response> responses, std::span<const Status> failures,
                            std::vector<Score>& scores) const {
  std::size_t count = 0;
  std::string first;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (failures[i].ok()) continue;
    const std::string why = with_row(failures[i].message(), responses[i]);
    if (config_.on_failure != "default") return {failures[i].code(), why};
    if (count++ == 0) first = why;
    scores[i] = {
        config_.default_score,
        std::vector<double>(part_names().size(), std::numeric_limits<double>::quiet_NaN())};
  }
  if (count > 0) warn_of_defaults(config_, count, failures.size(), first);
  return {};
}

Result<std::unique_ptr<RewardFunction>> make_rule(const spec::RewardFunctionConfig& config,
                                                  const Setting& setting) {
  std::optional<Pattern> pattern;
  if (!config.pattern.empty()) {
    NEAP_TRY_ASSIGN(pattern, Pattern::compile(config.pattern));
  }
  std::unique_ptr<RewardFunction> out;
  switch (config.kind) {
    case RewardKind::kExact:
    case RewardKind::kNumeric:
    case RewardKind::kSymbolic:
      return make_answer_rule(config, setting, std::move(pattern));
    case RewardKind::kRegex:
      if (!pattern) return Status(ErrorCode::kInvalidArgument, "pattern is empty");
      out = std::make_unique<PatternRule>(config, setting, std::move(*pattern));
      break;
    case RewardKind::kFormat:
      out = std::make_unique<FormatRule>(config, setting);
      break;
    case RewardKind::kLength: {
      const std::int64_t longest =
          config.max_length > 0 ? config.max_length : setting.max_response_length;
      if (config.buffer_length < 1 || config.buffer_length > longest)
        return Status(ErrorCode::kInvalidArgument,
                      format("buffer_length is {}; it can be 1 to max_length {}",
                             config.buffer_length, longest));
      out = std::make_unique<LengthRule>(config, setting, longest);
      break;
    }
    case RewardKind::kProgram:
    case RewardKind::kHttp:
    case RewardKind::kPython:
      return Status(ErrorCode::kInternal, "a service is not a rule");
  }
  return out;
}

}  // namespace neap::reward
