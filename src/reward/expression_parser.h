// Parses an expression in LaTeX or plain text.
//
// Threads   stateless functions.
//
// Cost      linear in the text's length, at most 64 levels deep.
#pragma once

#include <optional>
#include <string_view>

#include "reward/expression.h"

namespace neap::reward {

/// Base of \log if none is given.
enum class LogBase { kE, kTen };

/// Parses the output of clean_latex(); nullopt for other texts. It accepts numbers, single letters,
/// Greek letters, + - * / ^ !, brackets, \frac, \binom, \sqrt, functions such as \sin,
/// 0.1\overline{6}, |x| and \log_b. Letters may have subscripts, primes and accents. Products may
/// omit the sign. Mixed numbers are 1\frac12 or "7 3/4".
[[nodiscard]] std::optional<Expression> parse_expression(std::string_view text,
                                                         LogBase of_log = LogBase::kE);

}  // namespace neap::reward
