// All reward functions of a job, and the sum of their scores.
//
// Threads   one at a time.
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

/// A row's `data_source`; empty where it has none.
[[nodiscard]] std::string_view data_source_of(const Json& row);

class RewardSet {
 public:
  [[nodiscard]] static Result<RewardSet> make(const spec::RewardConfig& config,
                                              const Setting& setting);

  /// One number of each response: a function's score or one of its parts.
  struct Column {
    std::string name;       ///< "arithmetic", "arithmetic/acc"
    double weight = 0;      ///< in the sum
    bool part = false;      ///< a part of a score, which is in no sum
    bool accuracy = false;  ///< the part "acc"
  };
  [[nodiscard]] const std::vector<Column>& columns() const { return columns_; }
  [[nodiscard]] bool empty() const { return functions_.empty(); }

  /// Whether every function that scores responses to `row` can, and at least one does. Any thread.
  [[nodiscard]] Status check(const Json& row) const;
  /// What one function says of each response, nullopt where it does not score it, and the time that it took.
  struct FunctionScores {
    std::string name;
    std::vector<std::optional<Score>> scores;
    double seconds = 0;
  };
  /// One for each function, in the order of the configuration. Functions may have nothing to say about a response, but
  /// not all that score its row: then `on_failure` of the first applies.
  [[nodiscard]] Result<std::vector<FunctionScores>> score_each(std::span<const Response> responses);
  /// In words, how a function came to its score: what it said, else the answer and the right one.
  [[nodiscard]] std::string reason(std::size_t function, const Response& response,
                                   const Score& score) const;
  /// For each response the numbers of columns(); NaN where a function does not score it.
  [[nodiscard]] Result<std::vector<std::vector<double>>> score(std::span<const Response> responses);
  /// Of one response's numbers: the accuracy, from the first function that tells one; and its answer,
  /// from the first that finds one.
  [[nodiscard]] std::optional<double> accuracy(std::span<const double> numbers) const;
  [[nodiscard]] std::optional<std::string> answer(const Response& response) const;
  /// The sum of the scores of one response by weight; NaN counts nothing.
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
