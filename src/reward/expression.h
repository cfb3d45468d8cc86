// Mathematical expressions as trees that can be evaluated. Two expressions count as equal if they
// have the same values at several points.
//
// Threads   values; const functions from any thread.
//
// Cost      an evaluation visits each node once; a tree has at most kMaxNodes.
#pragma once

#include <complex>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace neap::reward {

enum class Operation : std::uint8_t {
  kNumber,
  kVariable,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kPower,
  kNegate,
  kRoot,  ///< of the first operand, with the second as degree
  kFactorial,
  kBinomial,  ///< first operand over the second
  kAbsolute,
  kFunction
};
enum class Function : std::uint8_t { kSin, kCos, kTan, kAsin, kAcos, kAtan, kLog, kExp };

class Expression {
 public:
  using Index = std::int32_t;
  static constexpr std::size_t kMaxNodes = 2000;
  static constexpr double kMaxFactors = 5000;  ///< limit for factorials and binomial coefficients

  Index number(double value);
  Index whole_number(std::string_view digits);
  /// Adds a decimal such as "1.715e14" with that value. It is exact, unless it has so many digits
  /// that it may be rounded.
  Index decimal(std::string_view text, double value);
  Index variable(const std::string& name);
  Index node(Operation operation, Index left, Index right = -1);
  Index call(Function function, Index argument);
  void set_root(Index root) { root_ = root; }
  /// The tree is too large, so its value is meaningless.
  [[nodiscard]] bool too_large() const { return nodes_.size() > kMaxNodes; }
  /// Whether the node is an integer literal.
  [[nodiscard]] bool is_whole_number(Index index) const;
  [[nodiscard]] bool is_ratio_of_whole_numbers(Index index) const;
  [[nodiscard]] bool is_minus_one(Index index) const;

  /// A value and a bound of its rounding error.
  struct Value {
    std::complex<double> value;
    double error = 0;
    [[nodiscard]] bool finite() const;
  };
  /// A result that is too large or too small for a double is NaN. Infinity appears only if the text
  /// contains it.
  [[nodiscard]] Value evaluate(const std::map<std::string, double>& variables) const;
  /// The exact value modulo kPrime. nullopt if it is not rational or takes too much work. Variables
  /// have different values at each `point`.
  [[nodiscard]] std::optional<std::uint64_t> residue(std::uint64_t point) const;
  /// The prime is 2 q + 1 with a prime q, so that powers of one base with different small exponents
  /// differ.
  static constexpr std::uint64_t kPrime = 4'478'370'266'891'735'399;
  [[nodiscard]] std::map<std::string, double> variables() const;  ///< all with value 0

 private:
  struct Node {
    Operation operation = Operation::kNumber;
    Function function = Function::kSin;
    Index left = -1, right = -1;
    double number = 0;
    std::string name{};
    std::optional<std::uint64_t> residue{};  // of an exact number
  };
  struct Exact;
  /// Computes `residue` times 10^exponent.
  [[nodiscard]] static std::uint64_t scaled_residue(std::uint64_t residue, int exponent);
  [[nodiscard]] static std::optional<Exact> apply(const Node& node, const Exact& a, const Exact& b);
  [[nodiscard]] static Value apply(const Node& node, const Value& a, const Value& b);
  [[nodiscard]] static bool is_out_of_range(const Node& node, const Value& value, const Value& a,
                                            const Value& b);
  [[nodiscard]] static bool computes_with_infinity(const Node& node, const Value& a,
                                                   const Value& b);
  std::vector<Node> nodes_;  // operands precede the nodes that use them
  Index root_ = -1;
};

/// Whether both are equal at every point; nullopt if one is not rational.
[[nodiscard]] std::optional<bool> exactly_same(const Expression& a, const Expression& b);
/// Whether both are equal, within their rounding errors, at all of several fixed points where both
/// are defined. False if they are defined at too few points.
[[nodiscard]] bool same_values(const Expression& a, const Expression& b);
/// Whether a = b and c = d have the same solutions: a - b is a constant times c - d.
[[nodiscard]] bool same_equations(const Expression& a, const Expression& b, const Expression& c,
                                  const Expression& d);

}  // namespace neap::reward
