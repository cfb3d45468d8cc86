#include "reward/expression.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace neap::reward {
namespace {

using Complex = std::complex<double>;
using Value = Expression::Value;
constexpr double kEps = std::numeric_limits<double>::epsilon();
// Answers often have decimals rounded to 15 digits.
constexpr double kRelative = 1e-13;
constexpr double kMaxRelative = 1e-9, kMaxAbsolute = 1e-12;
constexpr int kPoints = 12;
constexpr int kPointsNeeded = 4;
constexpr std::uint64_t kExactPoints = 2;

Value rounded(Complex value, double error) {
  return {value, error + 2 * kEps * std::abs(value)};
}

Value power(const Value& a, const Value& b) {
  if (a.value == Complex(0)) {
    if (b.value == Complex(0)) return {1, 0};
    return {b.value.real() > 0 ? Complex(0) : Complex(std::nan("")), a.error};
  }
  // std::pow with a whole exponent uses logarithms, whose rounding error is too large.
  const double exponent = b.value.real();
  const bool whole =
      b.value.imag() == 0 && std::abs(exponent) <= 64 && exponent == std::floor(exponent);
  Complex value = 1;
  if (whole) {
    for (int i = 0; i < static_cast<int>(std::abs(exponent)); ++i) value *= a.value;
    if (exponent < 0) value = 1.0 / value;
  } else {
    value = std::pow(a.value, b.value);
  }
  const double relative = std::abs(b.value) * a.error / std::abs(a.value) +
                          std::abs(std::log(a.value)) * (b.error + kEps * std::abs(b.value));
  return rounded(value, std::abs(value) * (relative + 64 * kEps));
}

// The real root of a negative number if the degree is odd, else the principal root.
Value root(const Value& a, const Value& degree) {
  const double n = degree.value.real();
  const bool odd = degree.value.imag() == 0 && n == std::floor(n) && std::fmod(n, 2) != 0;
  if (odd && a.value.imag() == 0 && a.value.real() < 0) {
    const Value positive = power({-a.value, a.error}, {1 / n, 0});
    return {-positive.value, positive.error};
  }
  if (n == 2) {
    const Complex value = std::sqrt(a.value);
    const double error = std::abs(value) > 0 ? a.error / (2 * std::abs(value)) : std::sqrt(a.error);
    return rounded(value, error);
  }
  return power(a, {1.0 / degree.value, kEps});
}

Value factorial(const Value& a) {
  if (a.value.imag() != 0 || a.value.real() < 0 || a.value.real() > 170) return {std::nan(""), 0};
  const double value = std::round(std::tgamma(a.value.real() + 1));
  const bool whole = a.value.real() == std::floor(a.value.real());
  return rounded(whole ? value : std::tgamma(a.value.real() + 1), 16 * kEps * value);
}

Value binomial(const Value& a, const Value& b) {
  double n = a.value.real();
  double k = b.value.real();
  if (a.value.imag() != 0 || b.value.imag() != 0) return {std::nan(""), 0};
  if (k != std::floor(k)) {
    if (n < 0 || k < 0) return {std::nan(""), 0};  // as for factorials
    const double value = std::tgamma(n + 1) / std::tgamma(k + 1) / std::tgamma(n - k + 1);
    return rounded(value, 64 * kEps * std::abs(value));
  }
  if (n == std::floor(n) && n >= 0) k = std::min(k, n - k);
  if (k > Expression::kMaxFactors) return {std::nan(""), 0};
  double value = k < 0 ? 0 : 1;
  for (double i = 0; i < k; ++i) value = value * (n - i) / (i + 1);
  return rounded(value, 4 * kEps * std::max(k, 0.0) * std::abs(value));
}

Value call(Function function, const Value& a) {
  const auto with_slope = [&](Complex value, Complex slope) {
    return rounded(value, a.error * std::abs(slope) + 4 * kEps * (1 + std::abs(value)));
  };
  const Complex x = a.value;
  switch (function) {
    case Function::kSin:
      return with_slope(std::sin(x), 1 + kEps * std::abs(x));
    case Function::kCos:
      return with_slope(std::cos(x), 1 + kEps * std::abs(x));
    case Function::kTan:
      return with_slope(std::tan(x), 1.0 / (std::cos(x) * std::cos(x)));
    case Function::kAsin:
      return with_slope(std::asin(x), 2);
    case Function::kAcos:
      return with_slope(std::acos(x), 2);
    case Function::kAtan:
      return with_slope(std::atan(x), 1);
    case Function::kLog:
      return with_slope(std::log(x), 1.0 / x);
    case Function::kExp:
      return with_slope(std::exp(x), std::exp(x));
  }
  return {};
}

bool close(const Value& a, const Value& b) {
  if (!a.finite() || !b.finite()) return a.value == b.value;
  const double size = std::max(std::abs(a.value), std::abs(b.value));
  // Bound the error: otherwise an answer could be written so that its rounding error covers every
  // truth.
  const double rounding =
      std::min(8 * (a.error + b.error), std::max(kMaxRelative * size, kMaxAbsolute));
  return std::abs(a.value - b.value) <= rounding + kRelative * size;
}

// Calls `look` with values for the variables of both, at a sequence of fixed points.
template <class Look>
void visit_points(std::map<std::string, double> variables, Look&& look) {
  for (std::uint64_t point = 0; point < kPoints; ++point) {
    std::uint64_t number = 0;
    for (auto& [name, value] : variables) {
      const auto bits = mix(random_key({0x6d617468ULL, point, number++}));
      const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
      // Use both signs, and avoid 0 and 1, where different expressions often agree.
      value = (point % 3 == 2 ? -1 : 1) * (0.25 + 2.5 * unit);
    }
    if (!look(variables)) return;
  }
}

}  // namespace

bool Value::finite() const {
  return std::isfinite(value.real()) && std::isfinite(value.imag());
}

Expression::Index Expression::number(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 0x1p53;
  Node node{.number = value};
  if (whole) {
    const auto size = static_cast<std::uint64_t>(std::abs(value));
    node.residue = value < 0 ? kPrime - size : size;
  }
  nodes_.push_back(std::move(node));
  return static_cast<Index>(nodes_.size() - 1);
}
Expression::Index Expression::whole_number(std::string_view digits) {
  Node node{.number = std::nan(""), .residue = 0};  // NaN if it is too large
  (void)std::from_chars(digits.data(), digits.data() + digits.size(), node.number);
  for (const char digit : digits) {
    const auto next = static_cast<std::uint64_t>(digit - '0');
    node.residue = static_cast<std::uint64_t>(
        (static_cast<unsigned __int128>(*node.residue) * 10 + next) % kPrime);
  }
  nodes_.push_back(std::move(node));
  return static_cast<Index>(nodes_.size() - 1);
}
Expression::Index Expression::decimal(std::string_view text, double value) {
  constexpr std::ptrdiff_t kExactDigits = 12;
  const std::size_t mark = std::min(text.find_first_of("eE"), text.size());
  const std::string_view mantissa = text.substr(0, mark);
  int exponent = 0;
  if (mark < text.size()) {
    std::string_view power = text.substr(mark + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    if (std::from_chars(power.data(), power.data() + power.size(), exponent).ec != std::errc())
      return number(value);
  }
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string digits(mantissa.substr(0, point));
  if (point < mantissa.size()) {
    digits += mantissa.substr(point + 1);
    exponent -= static_cast<int>(mantissa.size() - point - 1);
  }
  const auto counts = [](char c) { return c >= '0' && c <= '9'; };
  if (digits.empty() || std::ssize(digits) > kExactDigits ||
      !std::all_of(digits.begin(), digits.end(), counts))
    return number(value);
  const Index out = whole_number(digits);
  Node& node = nodes_.back();
  node.residue = scaled_residue(*node.residue, exponent);
  node.number = value;
  return out;
}
Expression::Index Expression::variable(const std::string& name) {
  nodes_.push_back({.operation = Operation::kVariable, .name = name});
  return static_cast<Index>(nodes_.size() - 1);
}
Expression::Index Expression::node(Operation operation, Index left, Index right) {
  nodes_.push_back({.operation = operation, .left = left, .right = right});
  return static_cast<Index>(nodes_.size() - 1);
}
Expression::Index Expression::call(Function function, Index argument) {
  nodes_.push_back({.operation = Operation::kFunction, .function = function, .left = argument});
  return static_cast<Index>(nodes_.size() - 1);
}

bool Expression::is_whole_number(Index index) const {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  return node.operation == Operation::kNumber && node.number == std::floor(node.number);
}

bool Expression::is_ratio_of_whole_numbers(Index index) const {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  return node.operation == Operation::kDivide && is_whole_number(node.left) &&
         is_whole_number(node.right);
}

bool Expression::is_minus_one(Index index) const {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  return node.operation == Operation::kNegate && is_whole_number(node.left) &&
         nodes_[static_cast<std::size_t>(node.left)].number == 1;
}

std::map<std::string, double> Expression::variables() const {
  std::map<std::string, double> out;
  for (const Node& node : nodes_)
    if (node.operation == Operation::kVariable) out[node.name] = 0;
  return out;
}

Expression::Value Expression::apply(const Node& node, const Value& a, const Value& b) {
  switch (node.operation) {
    case Operation::kNumber:
      // A whole number below 2^53 is exact.
      return {node.number, node.number == std::floor(node.number) && std::abs(node.number) < 0x1p53
                               ? 0
                               : kEps * std::abs(node.number)};
    case Operation::kVariable:
      return {};
    case Operation::kAdd:
      return rounded(a.value + b.value, a.error + b.error);
    case Operation::kSubtract:
      return rounded(a.value - b.value, a.error + b.error);
    case Operation::kMultiply:
      return rounded(a.value * b.value, std::abs(a.value) * b.error + std::abs(b.value) * a.error);
    case Operation::kDivide: {
      if (b.value == Complex(0)) return {std::nan(""), 0};
      const Complex value = a.value / b.value;
      return rounded(value, (a.error + std::abs(value) * b.error) / std::abs(b.value));
    }
    case Operation::kPower:
      return power(a, b);
    case Operation::kNegate:
      return {-a.value, a.error};
    case Operation::kRoot:
      return root(a, b);
    case Operation::kFactorial:
      return factorial(a);
    case Operation::kBinomial:
      return binomial(a, b);
    case Operation::kAbsolute:
      return {std::abs(a.value), a.error};
    case Operation::kFunction:
      return reward::call(node.function, a);
  }
  return {};
}

// True if a double cannot represent the value. Two such values must not compare as equal.
bool Expression::is_out_of_range(const Node& node, const Value& value, const Value& a,
                                 const Value& b) {
  if (node.operation == Operation::kNumber || node.operation == Operation::kVariable) return false;
  if (!value.finite()) return a.finite() && b.finite();
  const bool scales = node.operation == Operation::kMultiply ||
                      node.operation == Operation::kDivide || node.operation == Operation::kPower ||
                      (node.operation == Operation::kFunction && node.function == Function::kExp);
  const bool from_zero = node.operation != Operation::kFunction && a.value == Complex(0);
  const bool by_zero = node.operation == Operation::kMultiply && b.value == Complex(0);
  return scales && std::abs(value.value) < std::numeric_limits<double>::min() && !from_zero &&
         !by_zero && a.finite() && b.finite();
}

// True for sums and products with infinity. Only its sign has a meaning.
bool Expression::computes_with_infinity(const Node& node, const Value& a, const Value& b) {
  if (node.operation == Operation::kNumber || node.operation == Operation::kNegate) return false;
  const auto infinite = [](const Value& x) {
    return std::isinf(x.value.real()) || std::isinf(x.value.imag());
  };
  return infinite(a) || infinite(b);
}

Expression::Value Expression::evaluate(const std::map<std::string, double>& variables) const {
  if (root_ < 0 || too_large()) return {std::nan(""), 0};
  std::vector<Value> values(nodes_.size());
  const auto at = [&](Index i) { return i < 0 ? Value{} : values[static_cast<std::size_t>(i)]; };
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    values[i] = node.operation == Operation::kVariable ? Value{variables.at(node.name), 0}
                                                       : apply(node, at(node.left), at(node.right));
    values[i].value += Complex(0);  // with an imaginary part of -0, \sqrt{-1} would be -i
    if (is_out_of_range(node, values[i], at(node.left), at(node.right)) ||
        computes_with_infinity(node, at(node.left), at(node.right)))
      values[i] = {std::nan(""), 0};
  }
  return values[static_cast<std::size_t>(root_)];
}

std::optional<bool> exactly_same(const Expression& a, const Expression& b) {
  for (std::uint64_t point = 0; point < kExactPoints; ++point) {
    const auto x = a.residue(point);
    const auto y = x ? b.residue(point) : x;
    if (!x || !y) return std::nullopt;
    if (*x != *y) return false;
  }
  return true;
}

bool same_values(const Expression& a, const Expression& b) {
  const std::optional<bool> exact = exactly_same(a, b);
  if (exact && !*exact) return false;
  std::map<std::string, double> variables = a.variables();
  variables.merge(b.variables());
  const bool constant = variables.empty();
  int agreed = 0;
  bool same = true;
  visit_points(variables, [&](const std::map<std::string, double>& point) {
    const Value x = a.evaluate(point);
    const Value y = b.evaluate(point);
    const bool undefined = std::isnan(std::abs(x.value)) || std::isnan(std::abs(y.value));
    // This point shows nothing except that the other expression can be computed.
    if (undefined && (exact || (!x.finite() && !y.finite()))) return !constant;
    same = x.finite() == y.finite() && close(x, y);
    agreed += same ? 1 : 0;
    return same && !constant;
  });
  return same && (exact || agreed >= (constant ? 1 : kPointsNeeded));
}

bool same_equations(const Expression& a, const Expression& b, const Expression& c,
                    const Expression& d) {
  std::map<std::string, double> variables = a.variables();
  for (const Expression* each : {&b, &c, &d}) variables.merge(each->variables());
  if (variables.empty()) return same_values(a, c) && same_values(b, d);
  std::vector<std::pair<Value, Value>> seen;
  const auto difference = [](const Value& x, const Value& y) {
    return rounded(x.value - y.value, x.error + y.error);
  };
  visit_points(variables, [&](const std::map<std::string, double>& point) {
    const Value left = difference(a.evaluate(point), b.evaluate(point));
    const Value right = difference(c.evaluate(point), d.evaluate(point));
    if (left.finite() && right.finite()) seen.emplace_back(left, right);
    return true;
  });
  if (seen.size() < kPointsNeeded) return false;
  const auto product = [](const Value& x, const Value& y) {
    return rounded(x.value * y.value, std::abs(x.value) * y.error + std::abs(y.value) * x.error);
  };
  // left_i / right_i is a constant if left_i right_0 = left_0 right_i. The constant is neither 0
  // nor infinite.
  const auto& [left0, right0] = seen.front();
  if (left0.value == Complex(0) || right0.value == Complex(0)) return false;
  return std::all_of(seen.begin(), seen.end(), [&, l0 = left0, r0 = right0](const auto& pair) {
    return close(product(pair.first, r0), product(l0, pair.second));
  });
}

}  // namespace neap::reward
