// Exact values of rational expressions modulo a prime. Equal expressions have equal residues;
// different ones almost never do, even for large numbers.
#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "reward/expression.h"

namespace neap::reward {
namespace {

constexpr std::uint64_t kPrime = Expression::kPrime;
constexpr double kMaxWhole = 0x1p53;

std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b % kPrime);
}
std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  return (a + b) % kPrime;
}
std::uint64_t minus(std::uint64_t a) {
  return a == 0 ? 0 : kPrime - a;
}
std::uint64_t to_the(std::uint64_t base, std::uint64_t exponent) {
  std::uint64_t out = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) out = times(out, base);
    base = times(base, base);
  }
  return out;
}
std::uint64_t inverse(std::uint64_t a) {
  return to_the(a, kPrime - 2);
}

}  // namespace

struct Expression::Exact {
  std::uint64_t residue = 0;
  std::optional<double> whole{};  // the value itself if it is a small whole number

  static Exact of(double whole) {
    const auto size = static_cast<std::uint64_t>(std::abs(whole)) % kPrime;
    return {whole < 0 ? minus(size) : size, whole};
  }
  /// Stores `whole` as the value if it is exact.
  static Exact of(std::uint64_t residue, const Exact& a, const Exact& b, double whole) {
    const bool exact =
        a.whole && b.whole && std::abs(whole) < kMaxWhole && whole == std::floor(whole);
    return {residue, exact ? std::optional(whole) : std::nullopt};
  }

  [[nodiscard]] std::optional<Exact> power(const Exact& exponent) const {
    if (!exponent.whole || (residue == 0 && *exponent.whole < 0)) return std::nullopt;
    const std::uint64_t size =
        to_the(residue, static_cast<std::uint64_t>(std::abs(*exponent.whole)));
    return of(*exponent.whole < 0 ? inverse(size) : size, *this, exponent,
              std::pow(whole.value_or(0), *exponent.whole));
  }
  /// Computes n (n - 1) ... with `count` factors.
  [[nodiscard]] Exact falling(double count) const {
    Exact out = of(1.0);
    for (double i = 0; i < count; ++i) {
      const std::uint64_t factor = plus(residue, minus(static_cast<std::uint64_t>(i)));
      out = of(times(out.residue, factor), out, *this,
               out.whole.value_or(0) * (whole.value_or(0) - i));
    }
    return out;
  }
  [[nodiscard]] std::optional<Exact> over(const Exact& other) const {
    if (other.residue == 0) return std::nullopt;
    return of(times(residue, inverse(other.residue)), *this, other,
              whole.value_or(0) / other.whole.value_or(1));
  }
  [[nodiscard]] std::optional<Exact> factorial() const {
    if (!whole || *whole < 0 || *whole > Expression::kMaxFactors) return std::nullopt;
    return falling(*whole);
  }
  [[nodiscard]] std::optional<Exact> choose(const Exact& of_these) const {
    if (!of_these.whole) return std::nullopt;
    double count = *of_these.whole;
    if (whole && *whole >= 0) count = std::min(count, *whole - count);
    if (count < 0) return of(0.0);
    if (count > Expression::kMaxFactors) return std::nullopt;
    return falling(count).over(of(count).falling(count));
  }
};

std::uint64_t Expression::scaled_residue(std::uint64_t residue, int exponent) {
  const std::uint64_t power = to_the(10, static_cast<std::uint64_t>(std::abs(exponent)));
  return times(residue, exponent < 0 ? inverse(power) : power);
}

std::optional<Expression::Exact> Expression::apply(const Node& node, const Exact& a,
                                                   const Exact& b) {
  const double x = a.whole.value_or(0);
  const double y = b.whole.value_or(0);
  switch (node.operation) {
    case Operation::kNumber:
      if (!node.residue) return std::nullopt;
      if (std::abs(node.number) < kMaxWhole && node.number == std::floor(node.number))
        return Exact::of(node.number);
      return Exact{*node.residue};
    case Operation::kAdd:
      return Exact::of(plus(a.residue, b.residue), a, b, x + y);
    case Operation::kSubtract:
      return Exact::of(plus(a.residue, minus(b.residue)), a, b, x - y);
    case Operation::kMultiply:
      return Exact::of(times(a.residue, b.residue), a, b, x * y);
    case Operation::kDivide:
      return a.over(b);
    case Operation::kPower:
      return a.power(b);
    case Operation::kNegate:
      return Exact::of(minus(a.residue), a, a, -x);
    case Operation::kFactorial:
      return a.factorial();
    case Operation::kBinomial:
      return a.choose(b);
    case Operation::kAbsolute:
      return a.whole ? std::optional(Exact::of(std::abs(x))) : std::nullopt;
    case Operation::kVariable:
    case Operation::kRoot:
    case Operation::kFunction:
      break;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Expression::residue(std::uint64_t point) const {
  if (root_ < 0 || too_large()) return std::nullopt;
  std::vector<Exact> values(nodes_.size());
  const auto at = [&](Index i) { return i < 0 ? Exact{} : values[static_cast<std::size_t>(i)]; };
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.operation == Operation::kVariable) {
      std::uint64_t key = random_key({0x65786163ULL, point});
      for (const char c : node.name) key = mix(key ^ static_cast<unsigned char>(c));
      values[i] = {key % kPrime};
      continue;
    }
    const std::optional<Exact> value = apply(node, at(node.left), at(node.right));
    if (!value) return std::nullopt;
    values[i] = *value;
  }
  return values[static_cast<std::size_t>(root_)].residue;
}

}  // namespace neap::reward
