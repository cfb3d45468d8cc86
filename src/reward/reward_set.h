// All reward functions of a job, and the sum of their scores.
//
// Threads   one at a time.
//
// Failure   Status, naming the function.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reward/reward.h"

namespace neap::reward {

/// A row's `data_source`; empty if it has none.
[[nodiscard]] std::string_view data_source_of(const Json& row);

class RewardSet {
 public:
  [[nodiscard]] static Result<RewardSet> make(const spec::RewardConfig& config,
                                              const Setting& setting);

  /// A number per response: a function's score or one of its parts.
  struct Column {
    std::string name;       ///< "arithmetic", "arithmetic/acc"
    double weight = 0;      ///< weight in the sum
    bool part = false;      ///< a part of a score, which is not summed
    bool accuracy = false;  ///< the part "acc"
  };
  [[nodiscard]] const std::vector<Column>& columns() const { return columns_; }
  [[nodiscard]] bool empty() const { return functions_.empty(); }

  /// Whether every function that scores responses to `row` is able to, and at least one does. Any
  /// thread.
  [[nodiscard]] Status check(const Json& row) const;
  /// Scores of one function, nullopt for responses that it does not score, and the time that it
  /// took.
  struct FunctionScores {
    std::string name;
    std::vector<std::optional<Score>> scores;
    double seconds = 0;
  };
  /// Scores of each function, in the order of the configuration. A function may have no score for a
  /// response. If all functions for its row have none, `on_failure` of the first applies.
  [[nodiscard]] Result<std::vector<FunctionScores>> score_each(std::span<const Response> responses);
  /// Explains a function's score in words: the function's own reason, else the answer and the right
  /// one.
  [[nodiscard]] std::string reason(std::size_t function, const Response& response,
                                   const Score& score) const;
  /// The numbers of columns() for each response; NaN if a function does not score it.
  [[nodiscard]] Result<std::vector<std::vector<double>>> score(std::span<const Response> responses);
  /// For one response: the accuracy from the first function that has one, and the answer from the
  /// first function that finds one.
  [[nodiscard]] std::optional<double> accuracy(std::span<const double> numbers) const;
  [[nodiscard]] std::optional<std::string> answer(const Response& response) const;
  /// The weighted sum of one response's scores; NaN is skipped.
  [[nodiscard]] double total(std::span<const double> numbers) const;

 private:
  struct Entry {
    spec::RewardFunctionConfig config;
    std::unique_ptr<RewardFunction> function;
    std::size_t first_column = 0;
  };
  [[nodiscard]] static bool scores(const Entry& entry, const Json& row);
  [[nodiscard]] Status complete(std::span<const Response> responses,
                                std::vector<FunctionScores>& each) const;
  [[nodiscard]] std::vector<std::size_t> silent_about(
      const Json& row, std::size_t response, const std::vector<FunctionScores>& each) const;
  std::vector<Entry> functions_;
  bool scored_by_model_ = false;
  std::vector<Column> columns_;
};

}  // namespace neap::reward
