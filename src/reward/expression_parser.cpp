#include "reward/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "base/read_limits.h"
#include "reward/number.h"
#include "reward/text_cursor.h"

namespace neap::reward {
namespace {

using Index = Expression::Index;
constexpr Index kNone = -1;

struct NamedFunction {
  std::string_view name;
  Function function;
  bool reciprocal = false;  // the result is the reciprocal of the function
};
// A longer name precedes names that it begins with.
constexpr std::array<NamedFunction, 15> kFunctions = {{{"arcsin", Function::kAsin},
                                                       {"arccos", Function::kAcos},
                                                       {"arctan", Function::kAtan},
                                                       {"asin", Function::kAsin},
                                                       {"acos", Function::kAcos},
                                                       {"atan", Function::kAtan},
                                                       {"sin", Function::kSin},
                                                       {"cos", Function::kCos},
                                                       {"tan", Function::kTan},
                                                       {"ln", Function::kLog},
                                                       {"log", Function::kLog},
                                                       {"exp", Function::kExp},
                                                       {"sec", Function::kCos, true},
                                                       {"csc", Function::kSin, true},
                                                       {"cot", Function::kTan, true}}};
constexpr std::array<std::pair<Function, Function>, 3> kInverses = {
    {{Function::kSin, Function::kAsin},
     {Function::kCos, Function::kAcos},
     {Function::kTan, Function::kAtan}}};
constexpr auto kGreek = std::to_array<std::string_view>(
    {"hbar",       "ell",  "phi",   "alpha", "beta",   "gamma",  "delta", "epsilon",
     "varepsilon", "zeta", "Delta", "eta",   "theta",  "lambda", "mu",    "nu",
     "xi",         "rho",  "sigma", "tau",   "varphi", "chi",    "psi",   "omega"});

// Every function returns kNone if the text is not an expression; that ends the parse.
class Parser : TextCursor {
 public:
  Parser(std::string_view text, LogBase of_log) : TextCursor(text), of_log_(of_log) {}

  std::optional<Expression> parse() {
    const Index root = group();
    skip_spaces();
    if (root == kNone || at_ != text_.size() || out_.too_large()) return std::nullopt;
    out_.set_root(root);
    return std::move(out_);
  }

 private:
  class Deeper {
   public:
    explicit Deeper(int& depth) : depth_(++depth) {}
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --depth_; }
    [[nodiscard]] bool too_deep() const { return depth_ > read_limits::kAnswer.levels; }

   private:
    int& depth_;
  };

  Index join(Operation operation, Index left, Index right) {
    if (left == kNone || right == kNone || out_.too_large()) return kNone;
    return out_.node(operation, left, right);
  }
  Index wrap(Operation operation, Index operand) {
    return operand == kNone ? kNone : out_.node(operation, operand);
  }

  Index sum() {
    const Deeper deeper(depth_);
    if (deeper.too_deep()) return kNone;
    Index left = term();
    while (left != kNone && (peek() == '+' || peek() == '-')) {
      const bool plus = text_[at_++] == '+';
      left = join(plus ? Operation::kAdd : Operation::kSubtract, left, term());
    }
    return left;
  }

  // Reads the content of braces: a sum, or one expression above another.
  Index group() {
    const Index above = sum();
    if (above == kNone) return kNone;
    if (take_word("\\over")) return join(Operation::kDivide, above, sum());
    if (take_word("\\choose")) return join(Operation::kBinomial, above, sum());
    return above;
  }

  Index term() {
    Index left = signed_power();
    while (left != kNone) {
      if (take('*')) {
        left = join(Operation::kMultiply, left, signed_power());
      } else if (take('/')) {
        left = join(Operation::kDivide, left, signed_power());
      } else if (begins_factor()) {
        left = next_factor(left);
      } else {
        break;
      }
    }
    return left;
  }

  // Reads a factor without a multiplication sign: 2x, 3(a+b), and mixed numbers.
  Index next_factor(Index left) {
    const bool digits = is_digit(peek()) || peek() == '.';
    const bool may_be_mixed = after_number_ && out_.is_whole_number(left);
    const std::string_view before = trimmed(text_.substr(0, at_));
    // These are products: 3!7!, (-1) 2, 2^6 3^5.
    const bool product = before.ends_with('!') || before.ends_with(')') ||
                         (after_power_ && (text_[at_ - 1] == ' ' || before.ends_with('}')));
    if (digits && !may_be_mixed && !product) return kNone;
    Index right = power();
    if (digits && !product) {  // 7 3/4 is a mixed number; other adjacent numbers are invalid
      if (right == kNone || !take('/')) return kNone;
      right = join(Operation::kDivide, right, power());
    }
    if (right == kNone) return kNone;
    after_number_ = false;
    const bool mixed = may_be_mixed && out_.is_ratio_of_whole_numbers(right);
    if (digits && !mixed && !product) return kNone;
    return join(mixed ? Operation::kAdd : Operation::kMultiply, left, right);
  }

  [[nodiscard]] bool begins_factor() {
    const char c = peek();
    if (is_digit(c) || is_letter(c) || c == '(' || c == '[' || c == '{' || c == '.') return true;
    const std::string_view rest = text_.substr(at_);
    return c == '\\' && rest.size() > 1 && is_letter(rest[1]) && !rest.starts_with("\\over") &&
           !rest.starts_with("\\choose");
  }

  Index signed_power() {
    bool negative = false;
    while (peek() == '-' || peek() == '+') negative ^= text_[at_++] == '-';
    const Index operand = power();
    // -1\frac12 is -(1 + 1/2): the sign also applies to what follows.
    if (!negative || operand == kNone) return operand;
    Index all = operand;
    while (all != kNone && after_number_ && begins_factor()) all = next_factor(all);
    after_number_ = false;
    return wrap(Operation::kNegate, all);
  }

  Index power() {
    const Deeper deeper(depth_);
    if (deeper.too_deep()) return kNone;
    Index base = primary();
    while (base != kNone && take('!')) base = postfix(Operation::kFactorial, base);
    if (base == kNone || !take('^')) return base;
    after_number_ = false;
    const Index exponent = exponent_of_power();
    after_number_ = false;
    after_power_ = true;
    return join(Operation::kPower, base, exponent);
  }
  Index postfix(Operation operation, Index operand) {
    after_number_ = false;
    return wrap(operation, operand);
  }
  Index exponent_of_power() {
    const bool negative = take('-');
    const Index exponent = power();  // right-associative
    return negative ? wrap(Operation::kNegate, exponent) : exponent;
  }

  Index primary() {
    after_number_ = false;
    after_power_ = false;
    const char c = peek();
    if (is_digit(c) || c == '.') return number();
    if (c == '(') return bracketed('(', ')', nullptr);
    if (c == '[') return bracketed('[', ']', nullptr);
    if (c == '{') return bracketed('{', '}', nullptr);
    if (c == '|') return bracketed('|', '|', &Parser::absolute);
    if (c == '\\') return command();
    if (is_letter(c)) return word();
    return kNone;
  }
  Index absolute(Index inner) { return wrap(Operation::kAbsolute, inner); }

  Index bracketed(char open, char close, Index (Parser::*finish)(Index)) {
    if (!take(open)) return kNone;
    const Index inner = open == '{' ? group() : sum();
    after_number_ = false;
    if (inner == kNone || !take(close)) return kNone;
    return finish == nullptr ? inner : (this->*finish)(inner);
  }

  Index number() {
    const std::size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    if (at_ < text_.size() && text_[at_] == '.') ++at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    if (at_ - start == 1 && text_[start] == '.') return kNone;
    const std::string_view plain = text_.substr(start, at_ - start);
    if (const std::size_t point = plain.find('.'); point != std::string_view::npos) {
      for (const std::string_view mark : {"\\overline", "\\bar", "\\dot"})
        if (take_word(mark)) return repeating(plain.substr(0, point), plain.substr(point + 1));
    }
    // "1e-5" has an exponent only if digits follow the "e".
    std::size_t end = at_;
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      ++end;
      if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
      const std::size_t digits = end;
      while (end < text_.size() && is_digit(text_[end])) ++end;
      if (end > digits) at_ = end;
    }
    const std::string_view digits = trimmed(text_.substr(start, at_ - start));
    after_number_ = true;
    if (std::all_of(digits.begin(), digits.end(), is_digit)) return out_.whole_number(digits);
    double value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
      return kNone;
    return out_.decimal(digits, value);
  }

  // Reads 0.1\overline{6} as 1/10 + 6/(10 (10 - 1)).
  Index repeating(std::string_view whole, std::string_view fraction) {
    const bool braces = take('{');
    const std::size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_]) && (braces || at_ == start)) ++at_;
    const std::string_view period = text_.substr(start, at_ - start);
    if (period.empty() || (braces && !take('}')) || is_digit(peek())) return kNone;
    const auto power_of_ten = [&](std::size_t digits) {
      return out_.node(Operation::kPower, out_.number(10),
                       out_.number(static_cast<double>(digits)));
    };
    const Index before = out_.whole_number(std::string(whole).append(fraction));
    const Index nines =
        out_.node(Operation::kSubtract, power_of_ten(period.size()), out_.number(1));
    const Index again = out_.node(Operation::kDivide, out_.whole_number(period), nines);
    return out_.node(Operation::kDivide, out_.node(Operation::kAdd, before, again),
                     power_of_ten(fraction.size()));
  }

  // Reads the argument of \frac or \sqrt: a group in braces, or one digit or letter.
  Index argument() {
    const char c = peek();
    if (c == '{') return bracketed('{', '}', nullptr);
    if (c == '\\') return primary();
    if (!is_digit(c) && !is_letter(c)) return kNone;
    ++at_;
    return is_digit(c) ? out_.number(c - '0') : letter(c);
  }

  Index whole_digits() {
    const std::size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return out_.whole_number(text_.substr(start, at_ - start));
  }

  Index named(const std::string& name) {
    const auto tail = name_tail();
    return tail ? out_.variable(name + *tail) : kNone;
  }

  Index letter(char c) {
    const char next = at_ < text_.size() ? text_[at_] : ' ';
    if (next == '_' || next == '\'') return named(std::string(1, c));
    if (c == 'e') return out_.number(std::exp(1.0));
    if (c == 'i') return wrap_root_of_minus_one();
    return out_.variable(std::string(1, c));
  }
  Index wrap_root_of_minus_one() {
    return out_.node(Operation::kRoot, out_.number(-1), out_.number(2));
  }

  Index command() {
    if (take_word("\\frac")) {
      const Index above = argument();
      return join(Operation::kDivide, above, above == kNone ? kNone : argument());
    }
    if (take_word("\\binom")) {
      const Index above = argument();
      return join(Operation::kBinomial, above, above == kNone ? kNone : argument());
    }
    if (take_word("\\sqrt")) return square_root(true);
    if (take_word("\\degree")) return out_.number(std::acos(-1.0) / 180);
    if (take_word("\\pi")) return out_.number(std::acos(-1.0));
    if (take_word("\\infty")) return out_.number(HUGE_VAL);
    for (const NamedFunction& named : kFunctions)
      if (take_word("\\" + std::string(named.name))) return function(named);
    for (const std::string_view name : kGreek)
      if (take_word("\\" + std::string(name))) return named(std::string(name));
    // An accent over a letter, or over several letters (a line through points).
    for (const std::string_view accent :
         {"\\vec", "\\overrightarrow", "\\overline", "\\bar", "\\hat", "\\tilde", "\\dot"}) {
      if (!take_word(accent)) continue;
      const bool braces = take('{');
      const std::size_t start = at_;
      while (at_ < text_.size() && is_letter(text_[at_]) && (braces || at_ == start)) ++at_;
      const std::string_view letters = text_.substr(start, at_ - start);
      if (letters.empty() || (braces && !take('}'))) return kNone;
      return named(std::string(accent) + std::string(letters));
    }
    return kNone;
  }

  Index square_root(bool latex) {
    Index degree = kNone;
    if (latex && take('[')) {
      degree = sum();
      if (degree == kNone || !take(']')) return kNone;
    }
    // \sqrt 13 means \sqrt{13}.
    const Index operand = latex && peek() != '(' && !is_digit(peek()) ? argument()
                          : latex && is_digit(peek())                 ? whole_digits()
                                                                      : primary();
    after_number_ = false;
    return join(Operation::kRoot, operand, degree == kNone ? out_.number(2) : degree);
  }

  // Reads a function after its name: an optional base and power, then its argument.
  Index function(const NamedFunction& named) {
    const Function which = named.function;
    Index base = kNone;
    if (which == Function::kLog && take('_') && (base = argument()) == kNone) return kNone;
    Index exponent = kNone;
    if (take('^') && (exponent = exponent_of_power()) == kNone) return kNone;
    Index operand = kNone;
    if (peek() == '(' || peek() == '{') {
      operand = primary();
    } else {
      operand = signed_power();
      while (operand != kNone && begins_factor() && !begins_function())
        operand = join(Operation::kMultiply, operand, power());
    }
    after_number_ = false;
    if (operand == kNone) return kNone;
    if (exponent != kNone && out_.is_minus_one(exponent)) {  // \sin^{-1} is the inverse function
      const auto inverse = std::find_if(kInverses.begin(), kInverses.end(),
                                        [&](const auto& pair) { return pair.first == which; });
      if (named.reciprocal || inverse == kInverses.end()) return kNone;
      return out_.call(inverse->second, operand);
    }
    Index out = out_.call(which, operand);
    if (named.reciprocal) out = out_.node(Operation::kDivide, out_.number(1), out);
    if (base == kNone && named.name == "log" && of_log_ == LogBase::kTen) base = out_.number(10);
    if (base != kNone) out = join(Operation::kDivide, out, out_.call(Function::kLog, base));
    return exponent == kNone ? out : join(Operation::kPower, out, exponent);
  }
  [[nodiscard]] bool begins_function() {
    const std::string_view rest = text_.substr(at_ + (peek() == '\\' ? 1 : 0));
    return std::any_of(kFunctions.begin(), kFunctions.end(),
                       [&](const NamedFunction& f) { return rest.starts_with(f.name); });
  }

  // Reads letters: a name in plain text, or variables in a product. Three or more letters that are
  // not a name are a word, not mathematics.
  Index word() {
    if (take_word("sqrt")) return square_root(false);
    if (take_word("pi")) return out_.number(std::acos(-1.0));
    if (take_word("infinity") || take_word("inf")) return out_.number(HUGE_VAL);
    for (const NamedFunction& named : kFunctions)
      if (take_word(named.name)) return function(named);
    std::size_t end = at_;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    const bool starts = at_ == 0 || !is_letter(text_[at_ - 1]);
    if (starts && end - at_ > 2) return kNone;
    return letter(text_[at_++]);
  }

  LogBase of_log_;
  int depth_ = 0;
  bool after_power_ = false;   // the last factor is a power
  bool after_number_ = false;  // the last factor is a number literal
  Expression out_;
};

}  // namespace

std::optional<Expression> parse_expression(std::string_view text, LogBase of_log) {
  return Parser(text, of_log).parse();
}

}  // namespace neap::reward
