// Whether two answers say the same, as data sets of mathematics need it.
//
// Threads   functions without state.
// Cost      answers of more than 4 096 bytes are compared as text; else some 0.1 ms, and
//           at most some 50 ms for those that are written to take long.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "reward/answer.h"
#include "reward/units.h"

namespace neap::reward {

/// A ground truth that is read once and compared often.
class SymbolicTruth {
 public:
  explicit SymbolicTruth(std::string_view truth);
  SymbolicTruth(SymbolicTruth&&) noexcept;
  SymbolicTruth& operator=(SymbolicTruth&&) noexcept;
  ~SymbolicTruth();
  /// Numbers, fractions, roots and expressions with variables by their values; percentages as the
  /// number or the number / 100; tuples, intervals and matrices part by part; sets, lists and unions
  /// in any order; inequalities as intervals; "x = 5" as 5; anything else as text without spaces and
  /// upper case. Any thread.
  [[nodiscard]] bool equals(std::string_view answer) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

struct ReadAnswer {
  Answer answer;
  std::optional<UnitSize> unit;
};
/// `text` as it is compared; nullopt where it is too long or empty.
[[nodiscard]] std::optional<ReadAnswer> read_answer(std::string_view text);

/// Of two answers that are expressions. A whole number of many digits equals only what is exactly the same.
[[nodiscard]] bool same_expression(const Answer& a, const Answer& b);

[[nodiscard]] bool symbolically_equal(std::string_view answer, std::string_view truth);

}  // namespace neap::reward
