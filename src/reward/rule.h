// Base of the rules, which score each response independently and several concurrently.
//
// Threads   score() starts its own threads. Functions that a rule overrides are const and called
//           concurrently.
//
// Failure   kInvalidArgument for a wrong configuration, and for a response that exceeds a limit
//           unless on_failure is "default".
#pragma once

#include <memory>
#include <optional>

#include "reward/pattern.h"
#include "reward/reward.h"

namespace neap::reward {

class Rule : public RewardFunction {
 public:
  Rule(const spec::RewardFunctionConfig& config, const Setting& setting)
      : config_(config), threads_(setting.threads) {}
  [[nodiscard]] Status check(const Json&) const override { return {}; }
  [[nodiscard]] Result<std::vector<Score>> score(std::span<const Response> responses) final;

 protected:
  /// A rule's data about a row, computed once for all responses to it.
  class OfRow {
   public:
    OfRow() = default;
    OfRow(const OfRow&) = delete;
    OfRow& operator=(const OfRow&) = delete;
    virtual ~OfRow() = default;
  };
  [[nodiscard]] virtual std::unique_ptr<const OfRow> read_row(const Json&) const { return nullptr; }
  /// `of_row` is the result of read_row() for the response's row.
  [[nodiscard]] virtual Result<Score> score_one(const Response& response,
                                                const OfRow* of_row) const = 0;
  [[nodiscard]] double value_of(bool correct) const {
    return correct ? config_.correct_score : config_.wrong_score;
  }
  [[nodiscard]] const spec::RewardFunctionConfig& config() const { return config_; }

 private:
  // Gives failed responses the default score, or returns the first failure, by on_failure.
  [[nodiscard]] Status replace_failed(std::span<const Response> responses,
                                      std::span<const Status> failures,
                                      std::vector<Score>& scores) const;

  spec::RewardFunctionConfig config_;
  std::size_t threads_;
};

/// Makes rules that compare an answer with the row's ground truth: exact, numeric, symbolic.
[[nodiscard]] std::unique_ptr<RewardFunction> make_answer_rule(
    const spec::RewardFunctionConfig& config, const Setting& setting,
    std::optional<Pattern> pattern);

}  // namespace neap::reward
