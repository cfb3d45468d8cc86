// Reads an expression as LaTeX or plain text writes it.
//
// Threads   functions without state.
// Cost      linear in the text's length, at most 64 levels deep.
#pragma once

#include <optional>
#include <string_view>

#include "reward/expression.h"

namespace neap::reward {

/// What \log without a base means.
enum class LogBase { kE, kTen };

/// `text` as clean_latex() left it: numbers, single letters, Greek letters, + - * / ^ !, brackets,
/// \frac, \binom, \sqrt, \sin and so on, 0.1\overline{6}, |x|, \log_b, subscripts, primes and accents of letters, products without a sign, mixed numbers (1\frac12,
/// "7 3/4"). nullopt for anything else.
[[nodiscard]] std::optional<Expression> parse_expression(std::string_view text,
                                                         LogBase of_log = LogBase::kE);

}  // namespace neap::reward
