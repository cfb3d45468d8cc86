#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/format.h"
#include "base/text.h"
#include "reward/extract.h"
#include "reward/ground_truth.h"
#include "reward/latex.h"
#include "reward/number.h"
#include "reward/rule.h"
#include "reward/symbolic.h"
#include "reward/units.h"

namespace neap::reward {
namespace {

using spec::Extraction;
using spec::RewardKind;

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

// Some data sets store the whole solution in place of the answer.
std::string_view answer_of_truth(std::string_view truth) {
  for (const Extraction how : {Extraction::kHashes, Extraction::kBoxed})
    if (const auto answer = extract(truth, how)) return *answer;
  return truth;
}

// Whether the number from last_number() is the whole text: false for "27x" and "not 27".
bool stands_alone(std::string_view text, std::string_view number) {
  const auto at = static_cast<std::size_t>(number.data() - text.data());
  std::string_view behind = text.substr(at + number.size());
  if (!behind.empty() && std::string_view("^!_\\/*").find(behind.front()) != std::string_view::npos)
    return false;
  if (!behind.empty() && is_letter(behind.front())) {
    const auto end = std::find_if_not(behind.begin(), behind.end(), is_letter);
    const std::string_view word = behind.substr(0, static_cast<std::size_t>(end - behind.begin()));
    if (!is_unit_symbol(word)) return false;
  }
  const std::string_view before = trimmed(text.substr(0, at));
  for (const std::string_view word : {"not", "or", "n't", "never"})
    if (before.ends_with(word) &&
        (before.size() == word.size() || !is_letter(before[before.size() - word.size() - 1])))
      return false;
  return true;
}

// Whether the response has an answer box that is incomplete or empty. An earlier number then does
// not count.
bool has_broken_box(std::string_view text) {
  const std::size_t begin = text.rfind("\\boxed{");
  const std::size_t thought = text.rfind("</think>");
  if (begin == std::string_view::npos || (thought != std::string_view::npos && begin < thought))
    return false;
  const auto box = extract(text, Extraction::kBoxed);
  return !box || box->empty();
}

class AnswerRule : public Rule {
 public:
  AnswerRule(const spec::RewardFunctionConfig& config, const Setting& setting,
             std::optional<Pattern> pattern)
      : Rule(config, setting), pattern_(std::move(pattern)) {
    for (const std::string& name : config.extract)
      extract_.push_back(*spec::parse_extraction(name));
    if (extract_.empty()) extract_ = usual_extractions(config.kind);
  }
  [[nodiscard]] std::vector<std::string> part_names() const override { return {"acc", "answered"}; }
  [[nodiscard]] std::optional<std::string> answer(const Response& response) const override {
    const auto found = answer_of(response.text);
    return found.ok() && *found ? canonical(**found) : std::nullopt;
  }
  [[nodiscard]] Status check(const Json& row) const override {
    NEAP_TRY_ASSIGN(const auto truths, ground_truths(row, config().ground_truth));
    for (const std::string& truth : truths) NEAP_TRY(check_truth(truth));
    return {};
  }

 protected:
  /// Compares answers with one ground truth.
  class Truth {
   public:
    Truth() = default;
    Truth(const Truth&) = delete;
    Truth& operator=(const Truth&) = delete;
    virtual ~Truth() = default;
    [[nodiscard]] virtual bool equals(std::string_view answer) const = 0;
  };
  [[nodiscard]] virtual std::unique_ptr<const Truth> read_truth(const std::string& truth) const = 0;
  /// The canonical form of `answer`.
  [[nodiscard]] virtual std::optional<std::string> canonical(std::string_view answer) const = 0;
  [[nodiscard]] virtual Status check_truth(const std::string&) const { return {}; }

 private:
  struct Truths final : OfRow {
    std::vector<std::unique_ptr<const Truth>> all;  // each of them is accepted
  };
  [[nodiscard]] std::unique_ptr<const OfRow> read_row(const Json& row) const override {
    auto out = std::make_unique<Truths>();
    if (const auto truths = ground_truths(row, config().ground_truth); truths.ok())
      for (const std::string& truth : *truths) out->all.push_back(read_truth(truth));
    return out;
  }
  [[nodiscard]] Result<Score> score_one(const Response& response,
                                        const OfRow* of_row) const override {
    NEAP_TRY_ASSIGN(const std::optional<std::string_view> answer, answer_of(response.text));
    const auto& truths = static_cast<const Truths*>(of_row)->all;
    const bool correct = answer && std::any_of(truths.begin(), truths.end(), [&](const auto& each) {
                           return each->equals(*answer);
                         });
    return Score{value_of(correct), {correct ? 1.0 : 0.0, answer ? 1.0 : 0.0}};
  }
  [[nodiscard]] Result<std::optional<std::string_view>> found(std::string_view text,
                                                              Extraction how) const {
    if (how != Extraction::kPattern) return extract(text, how);
    NEAP_TRY_ASSIGN(const auto match, pattern_->last_match(text));
    return match ? std::optional(trimmed(*match)) : std::nullopt;
  }
  [[nodiscard]] Result<std::optional<std::string_view>> answer_of(std::string_view text) const {
    for (const Extraction how : extract_) {
      NEAP_TRY_ASSIGN(const std::optional<std::string_view> answer, found(text, how));
      if (!answer || answer->empty()) continue;
      const bool counts =
          how != Extraction::kLastNumber || (stands_alone(text, *answer) && !has_broken_box(text));
      return counts ? answer : std::nullopt;
    }
    return std::optional<std::string_view>();
  }
  std::vector<Extraction> extract_;
  std::optional<Pattern> pattern_;
};

class ExactRule final : public AnswerRule {
 public:
  using AnswerRule::AnswerRule;

 private:
  [[nodiscard]] std::string written(std::string_view text) const {
    return config().ignore_case ? lower_case(text) : std::string(text);
  }
  [[nodiscard]] std::optional<std::string> canonical(std::string_view answer) const override {
    return written(answer);
  }
  [[nodiscard]] std::unique_ptr<const Truth> read_truth(const std::string& truth) const override {
    struct Exact final : Truth {
      Exact(const ExactRule& of, const std::string& text) : rule(of), written(of.written(text)) {}
      [[nodiscard]] bool equals(std::string_view answer) const override {
        return rule.written(answer) == written;
      }
      const ExactRule& rule;
      std::string written;
    };
    return std::make_unique<Exact>(*this, truth);
  }
};

struct Number {
  Answer answer;  // parsed as an expression
  double value = 0;
  std::optional<UnitSize> unit{};
};

// Reads a number with its unit or name: "72 apples", "x = 12 * 6 = 72". nullopt for other texts,
// such as "27x", "not 27", "27 or 28".
std::optional<Number> number_of(std::string_view text) {
  std::optional<ReadAnswer> read = read_answer(text);
  if (!read || read->answer.kind != AnswerKind::kExpression) return std::nullopt;
  double value = std::strtod(read->answer.decimal.c_str(), nullptr);
  if (read->answer.decimal.empty()) {
    if (!read->answer.expression->variables().empty()) return std::nullopt;
    const std::complex<double> of_expression = read->answer.expression->evaluate({}).value;
    if (!std::isfinite(of_expression.real()) || of_expression.imag() != 0) return std::nullopt;
    value = of_expression.real();
  }
  return Number{std::move(read->answer), value, read->unit};
}

bool same_number(const Number& a, const Number& truth, double tolerance) {
  if (a.unit && truth.unit &&
      (a.unit->kind != truth.unit->kind || a.unit->factor != truth.unit->factor))
    return false;
  return same_expression(a.answer, truth.answer) ||
         (tolerance > 0 && std::abs(a.value - truth.value) <= tolerance * std::abs(truth.value));
}

class NumericRule final : public AnswerRule {
 public:
  using AnswerRule::AnswerRule;

 private:
  [[nodiscard]] std::optional<std::string> canonical(std::string_view answer) const override {
    const auto number = number_of(answer);
    if (!number) return std::nullopt;
    const std::string& decimal = number->answer.decimal;
    return decimal.empty() ? format("{:.15g}", number->value) : decimal;
  }
  [[nodiscard]] Status check_truth(const std::string& truth) const override {
    if (number_of(answer_of_truth(truth))) return {};
    return {ErrorCode::kCorrupt,
            format("the right answer \"{}\" is not a number; set kind = \"symbolic\", which "
                   "compares expressions, or \"exact\"",
                   shortened(truth, 80))};
  }
  [[nodiscard]] std::unique_ptr<const Truth> read_truth(const std::string& truth) const override {
    struct Numeric final : Truth {
      Numeric(std::optional<Number> of, double difference)
          : number(std::move(of)), tolerance(difference) {}
      [[nodiscard]] bool equals(std::string_view answer) const override {
        const auto a = number_of(answer);
        return a && number && same_number(*a, *number, tolerance);
      }
      std::optional<Number> number;
      double tolerance;
    };
    return std::make_unique<Numeric>(number_of(answer_of_truth(truth)), config().tolerance);
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
  [[nodiscard]] std::unique_ptr<const Truth> read_truth(const std::string& truth) const override {
    struct Symbolic final : Truth {
      explicit Symbolic(std::string_view text) : truth(text) {}
      [[nodiscard]] bool equals(std::string_view answer) const override {
        return truth.equals(answer);
      }
      SymbolicTruth truth;
    };
    return std::make_unique<Symbolic>(answer_of_truth(truth));
  }
};

}  // namespace

std::unique_ptr<RewardFunction> make_answer_rule(const spec::RewardFunctionConfig& config,
                                                 const Setting& setting,
                                                 std::optional<Pattern> pattern) {
  if (config.kind == RewardKind::kExact)
    return std::make_unique<ExactRule>(config, setting, std::move(pattern));
  if (config.kind == RewardKind::kNumeric)
    return std::make_unique<NumericRule>(config, setting, std::move(pattern));
  return std::make_unique<SymbolicRule>(config, setting, std::move(pattern));
}

}  // namespace neap::reward
