#include "reward/rules.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "base/format.h"
#include "reward/expression_parser.h"
#include "reward/extract.h"
#include "reward/ground_truth.h"
#include "reward/latex.h"
#include "reward/number.h"
#include "reward/pattern.h"
#include "reward/symbolic.h"

namespace neap::reward {
namespace {

using spec::Extraction;
using spec::RewardKind;

// Scores each response on its own.
class Rule : public RewardFunction {
 public:
  explicit Rule(const spec::RewardFunctionConfig& config) : config_(config) {}
  [[nodiscard]] Status check(const Json&) const override { return {}; }
  [[nodiscard]] Result<std::vector<Score>> score(std::span<const Response> responses) final {
    std::vector<Score> out;
    out.reserve(responses.size());
    for (const Response& response : responses) out.push_back(score_one(response));
    return out;
  }

 protected:
  [[nodiscard]] virtual Score score_one(const Response& response) const = 0;
  [[nodiscard]] double value_of(bool correct) const {
    return correct ? config_.correct_score : config_.wrong_score;
  }
  [[nodiscard]] const spec::RewardFunctionConfig& config() const { return config_; }

 private:
  spec::RewardFunctionConfig config_;
};

// ---- answers against the row's ground truth ----

std::vector<Extraction> usual_extractions(RewardKind kind) {
  switch (kind) {
    case RewardKind::kNumeric:
      return {Extraction::kHashes, Extraction::kBoxed, Extraction::kAnswerTag,
              Extraction::kAnswerLine, Extraction::kLastNumber};
    case RewardKind::kSymbolic:
      return {Extraction::kBoxed, Extraction::kAnswerTag, Extraction::kHashes,
              Extraction::kAnswerLine};
    default:
      return {Extraction::kWhole};
  }
}

// A data set may have the whole solution where another has the answer.
std::string_view answer_of_truth(std::string_view truth) {
  for (const Extraction how : {Extraction::kHashes, Extraction::kBoxed})
    if (const auto answer = extract(truth, how, nullptr)) return *answer;
  return truth;
}

class AnswerRule : public Rule {
 public:
  AnswerRule(const spec::RewardFunctionConfig& config, std::optional<Pattern> pattern)
      : Rule(config), pattern_(std::move(pattern)) {
    for (const std::string& name : config.extract)
      extract_.push_back(*spec::parse_extraction(name));
    if (extract_.empty()) extract_ = usual_extractions(config.kind);
  }
  [[nodiscard]] std::vector<std::string> part_names() const override { return {"acc", "answered"}; }
  [[nodiscard]] std::optional<std::string> answer(const Response& response) const override {
    const std::optional<std::string_view> found = answer_of(response.text);
    return found ? canonical(*found) : std::nullopt;
  }
  [[nodiscard]] Status check(const Json& row) const override {
    NEAP_TRY_ASSIGN(const auto truths, ground_truths(row, config().ground_truth));
    for (const std::string& truth : truths) NEAP_TRY(check_truth(truth));
    return {};
  }

 protected:
  /// `answer` written in one way.
  [[nodiscard]] virtual std::optional<std::string> canonical(std::string_view answer) const = 0;
  [[nodiscard]] virtual Status check_truth(const std::string&) const { return {}; }
  [[nodiscard]] virtual bool equal(std::string_view answer, const std::string& truth) const = 0;
  [[nodiscard]] Score score_one(const Response& response) const override {
    const std::optional<std::string_view> answer = answer_of(response.text);
    bool correct = false;
    if (const auto truths = ground_truths(*response.row, config().ground_truth);
        answer && truths.ok()) {
      correct = std::any_of(truths->begin(), truths->end(),
                            [&](const std::string& truth) { return equal(*answer, truth); });
    }
    return {value_of(correct), {correct ? 1.0 : 0.0, answer ? 1.0 : 0.0}};
  }

 private:
  [[nodiscard]] std::optional<std::string_view> answer_of(std::string_view text) const {
    for (const Extraction how : extract_)
      if (const auto answer = extract(text, how, pattern_ ? &*pattern_ : nullptr);
          answer && !answer->empty())
        return answer;
    return std::nullopt;
  }
  std::vector<Extraction> extract_;
  std::optional<Pattern> pattern_;
};

class ExactRule final : public AnswerRule {
 public:
  using AnswerRule::AnswerRule;

 private:
  [[nodiscard]] std::string written(std::string_view text) const {
    std::string out(text);
    if (!config().ignore_case) return out;
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
  }
  [[nodiscard]] std::optional<std::string> canonical(std::string_view answer) const override {
    return written(answer);
  }
  [[nodiscard]] bool equal(std::string_view answer, const std::string& truth) const override {
    return written(answer) == written(truth);
  }
};

struct Number {
  std::string decimal;  // canonical; empty for a fraction
  double value = 0;
};

// A decimal number, an expression without variables, or the first number in a phrase.
std::optional<Number> number_of(std::string_view text) {
  const CleanedText cleaned = clean_latex(text);
  std::string_view clean = cleaned.text;
  if (const auto equals = clean.rfind('='); equals != std::string_view::npos)
    clean = trimmed(clean.substr(equals + 1));
  auto decimal = canonical_decimal(clean);
  if (!decimal) {
    const auto expression = parse_expression(clean);
    if (expression && expression->variables().empty()) {
      const std::complex<double> value = expression->evaluate({}).value;
      if (std::isfinite(value.real()) && value.imag() == 0) return Number{"", value.real()};
    }
    const auto first = first_number(clean);
    if (!first || clean.find('\\') != std::string_view::npos) return std::nullopt;
    decimal = canonical_decimal(*first);
  }
  if (!decimal) return std::nullopt;
  return Number{*decimal, std::strtod(decimal->c_str(), nullptr)};
}

class NumericRule final : public AnswerRule {
 public:
  using AnswerRule::AnswerRule;

 private:
  [[nodiscard]] std::optional<std::string> canonical(std::string_view answer) const override {
    const auto number = number_of(answer);
    if (!number) return std::nullopt;
    return number->decimal.empty() ? format("{:.15g}", number->value) : number->decimal;
  }
  [[nodiscard]] Status check_truth(const std::string& truth) const override {
    if (number_of(answer_of_truth(truth))) return {};
    return {ErrorCode::kCorrupt,
            format("the right answer \"{}\" holds no number; take kind \"symbolic\" or \"exact\"",
                   std::string_view(truth).substr(0, 80))};
  }
  [[nodiscard]] bool equal(std::string_view answer, const std::string& truth) const override {
    const auto a = number_of(answer);
    const auto t = number_of(answer_of_truth(truth));
    if (!a || !t) return false;
    if (!a->decimal.empty() && a->decimal == t->decimal) return true;
    const bool decimals = !a->decimal.empty() && !t->decimal.empty();
    // A fraction and a decimal are compared as doubles.
    const double tolerance = std::max(config().tolerance, decimals ? 0.0 : 1e-14);
    return tolerance > 0 && std::abs(a->value - t->value) <= tolerance * std::abs(t->value);
  }
};

class SymbolicRule final : public AnswerRule {
 public:
  using AnswerRule::AnswerRule;

 private:
  [[nodiscard]] std::optional<std::string> canonical(std::string_view answer) const override {
    const CleanedText cleaned = clean_latex(answer);
    return cleaned.text + (cleaned.percent ? "%" : "");
  }
  [[nodiscard]] bool equal(std::string_view answer, const std::string& truth) const override {
    return symbolically_equal(answer, answer_of_truth(truth));
  }
};

// ---- the form of a response ----

class PatternRule final : public Rule {
 public:
  PatternRule(const spec::RewardFunctionConfig& config, Pattern pattern)
      : Rule(config), pattern_(std::move(pattern)) {}
  [[nodiscard]] std::vector<std::string> part_names() const override { return {}; }

 private:
  [[nodiscard]] Score score_one(const Response& response) const override {
    return {value_of(pattern_.found_in(response.text)), {}};
  }
  Pattern pattern_;
};

// <think>...</think>, and behind it <answer>...</answer>; every tag once.
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
  // What follows the tags of `name`, which `text` begins with.
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
  [[nodiscard]] Score score_one(const Response& response) const override {
    return {value_of(has_form(response.text)), {}};
  }
};

class LengthRule final : public Rule {
 public:
  LengthRule(const spec::RewardFunctionConfig& config, std::int64_t max_length)
      : Rule(config), max_length_(max_length) {}
  [[nodiscard]] std::vector<std::string> part_names() const override { return {"over"}; }

 private:
  [[nodiscard]] Score score_one(const Response& response) const override {
    const std::int64_t buffer = config().buffer_length;
    const std::int64_t over = response.tokens - (max_length_ - buffer);
    double share =
        static_cast<double>(std::max<std::int64_t>(over, 0)) / static_cast<double>(buffer);
    if (config().formula != "verl") share = std::min(share, 1.0);
    const double factor = config().formula == "trl" ? 1.0 : config().penalty_factor;
    return {over > 0 ? -share * factor : 0.0, {over > 0 ? 1.0 : 0.0}};
  }
  std::int64_t max_length_;
};

}  // namespace

Result<std::unique_ptr<RewardFunction>> make_rule(const spec::RewardFunctionConfig& config,
                                                  const Setting& setting) {
  std::optional<Pattern> pattern;
  if (!config.pattern.empty()) {
    NEAP_TRY_ASSIGN(pattern, Pattern::compile(config.pattern));
  }
  std::unique_ptr<RewardFunction> out;
  switch (config.kind) {
    case RewardKind::kExact:
      out = std::make_unique<ExactRule>(config, std::move(pattern));
      break;
    case RewardKind::kNumeric:
      out = std::make_unique<NumericRule>(config, std::move(pattern));
      break;
    case RewardKind::kSymbolic:
      out = std::make_unique<SymbolicRule>(config, std::move(pattern));
      break;
    case RewardKind::kRegex:
      if (!pattern) return Status(ErrorCode::kInvalidArgument, "pattern is empty");
      out = std::make_unique<PatternRule>(config, std::move(*pattern));
      break;
    case RewardKind::kFormat:
      out = std::make_unique<FormatRule>(config);
      break;
    case RewardKind::kLength: {
      const std::int64_t longest =
          config.max_length > 0 ? config.max_length : setting.max_response_length;
      if (config.buffer_length < 1 || config.buffer_length > longest)
        return Status(ErrorCode::kInvalidArgument,
                      format("buffer_length is {}; it can be 1 to max_length {}",
                             config.buffer_length, longest));
      out = std::make_unique<LengthRule>(config, longest);
      break;
    }
    case RewardKind::kProgram:
    case RewardKind::kHttp:
      return Status(ErrorCode::kInternal, "a service is no rule");
  }
  return out;
}

}  // namespace neap::reward
