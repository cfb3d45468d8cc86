// Decides whether two mathematical answers are equal, for data sets of mathematics.
//
// Threads   stateless functions.
//
// Cost      answers of more than 4 096 bytes are compared as text. Others take about 0.1 ms, and at
//           most about 50 ms if written to be slow.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "reward/answer.h"
#include "reward/units.h"

namespace neap::reward {

/// A ground truth that is parsed once and compared often.
class SymbolicTruth {
 public:
  explicit SymbolicTruth(std::string_view truth);
  SymbolicTruth(SymbolicTruth&&) noexcept;
  SymbolicTruth& operator=(SymbolicTruth&&) noexcept;
  ~SymbolicTruth();
  /// Compares by the form of the answer. Any thread.
  ///
  /// - Numbers, fractions, roots and expressions with variables: by value.
  /// - Percentages: as the number, or as the number / 100.
  /// - Tuples, intervals and matrices: part by part. Sets, lists and unions: in any order.
  /// - Inequalities: as intervals. "x = 5": as 5.
  /// - Other text: without spaces, ignoring case.
  [[nodiscard]] bool equals(std::string_view answer) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

struct ReadAnswer {
  Answer answer;
  std::optional<UnitSize> unit;
};
/// `text` in the form used for comparison; nullopt if it is too long or empty.
[[nodiscard]] std::optional<ReadAnswer> read_answer(std::string_view text);

/// Compares two expressions. A whole number with many digits equals only exactly equal values.
[[nodiscard]] bool same_expression(const Answer& a, const Answer& b);

}  // namespace neap::reward
