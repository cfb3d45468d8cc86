// Python's operators for values of chat templates.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "text/chat/interpreter.h"

namespace neap::chat {
namespace {

std::int64_t checked(bool overflow, const std::int64_t& value) {
  if (overflow) fail("an integer is too large");
  return value;  // a reference, because the operation of the other argument sets it
}

[[noreturn]] void unsupported(std::string_view op, const Value& left, const Value& right) {
  left.defined();
  right.defined();
  if (op == "+" && left.text() != nullptr)
    fail(format("can only concatenate str (not \"{}\") to str", right.type()));
  fail(format("unsupported operand type(s) for {}: '{}' and '{}'", op, left.type(), right.type()));
}

Value integers(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (op == "+") return checked(__builtin_add_overflow(a, b, &r), r);
  if (op == "-") return checked(__builtin_sub_overflow(a, b, &r), r);
  if (op == "*") return checked(__builtin_mul_overflow(a, b, &r), r);
  if (op == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    r = 1;
    for (std::int64_t k = 0; k < b && r != 0 && !(r == 1 && a == 1); ++k)
      r = checked(__builtin_mul_overflow(r, a, &r) || k > std::int64_t{64} * 1024, r);
    return r;
  }
  if (b == 0) fail("division by zero");
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1)
    return op == "%" ? Value(std::int64_t{0})
                     : Value(checked(__builtin_sub_overflow(std::int64_t{0}, a, &r), r));
  const std::int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);  // Python rounds down
  if (op == "%") return adjust ? remainder + b : remainder;
  return a / b - (adjust ? 1 : 0);
}

Value reals(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) fail("float division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  const double remainder = std::fmod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

Value repeated(const Value& value, std::int64_t times, Budget& budget) {
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(0, times));
  const std::size_t size =
      value.text() != nullptr ? value.text()->size() : value.list()->items.size();
  if (size == 0) return value;
  if (n > kLimits.part.count() / size) check_length(kLimits.part.count() + 1);
  if (value.text() != nullptr) {
    String made(budget);
    made.reserve(size * n);
    for (std::size_t k = 0; k < n; ++k) made += *value.text();
    return made;
  }
  List made(budget);
  made.tuple = value.list()->tuple;
  made.items.reserve(size * n);
  for (std::size_t k = 0; k < n; ++k)
    made.items.insert(made.items.end(), value.list()->items.begin(), value.list()->items.end());
  return made;
}

String joined(std::string_view a, std::string_view b, Budget& budget) {
  String made(budget);
  made.reserve(a.size() + b.size());
  made += a;
  made += b;
  return made;
}

}  // namespace

Value operate(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "~") return joined(left.str(budget), right.str(budget), budget);
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer())
      return integers(op, left.integer(), right.integer());
    return reals(op, left.number(), right.number());
  }
  if (op == "+" && left.text() != nullptr && right.text() != nullptr)
    return joined(*left.text(), *right.text(), budget);
  if (op == "+" && left.list() != nullptr && right.list() != nullptr &&
      left.list()->tuple == right.list()->tuple) {
    List made(budget);
    made.tuple = left.list()->tuple;
    for (const Value* part : {&left, &right})
      made.items.insert(made.items.end(), part->list()->items.begin(), part->list()->items.end());
    return made;
  }
  const auto repeats = [](const Value& v) { return v.text() != nullptr || v.list() != nullptr; };
  if (op == "*" && repeats(left) && right.is_integer())
    return repeated(left, right.integer(), budget);
  if (op == "*" && left.is_integer() && repeats(right))
    return repeated(right, left.integer(), budget);
  unsupported(op, left, right);
}

}  // namespace neap::chat
