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
  std::vector<Entry> functions_;
  std::vector<Column> columns_;
};

}  // namespace neap::reward
