// Expressions of chat templates: their values.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/format.h"
#include "chat/interpreter.h"

namespace neap::chat {

Value Interpreter::lookup(const std::string& name, const ScopePtr& scope) const {
  for (const Scope* s = scope.get(); s != nullptr; s = s->parent.get()) {
    if (const auto it = s->variables.find(name); it != s->variables.end()) return it->second;
  }
  return Value::undefined(format("'{}' is undefined", name));
}

Value Interpreter::evaluate(const Expression& e, const ScopePtr& scope) {
  spend(1);
  if (++depth_ > 600) {
    --depth_;
    fail("calls and blocks nest too deep");
  }
  try {
    Value value = evaluate_kind(e, scope);
    --depth_;
    return value;
  } catch (TemplateError& error) {
    --depth_;
    if (error.line == 0) error.line = e.line;
    throw;
  } catch (...) {
    --depth_;
    throw;
  }
}

Value Interpreter::evaluate_kind(const Expression& e, const ScopePtr& scope) {
  switch (e.kind) {
    case Expression::kConstant:
      return e.value;
    case Expression::kName:
      return lookup(e.text, scope);
    case Expression::kList:
    case Expression::kTuple:
    case Expression::kDict:
      return collection(e, scope);
    case Expression::kUnary:
      return unary(e, scope);
    case Expression::kBinary:
      return binary(e, scope);
    case Expression::kCompare:
      return compare_chain(e, scope);
    case Expression::kCondition:
      if (evaluate(*e.parts[1], scope).truth()) return evaluate(*e.parts[0], scope);
      if (e.parts.size() == 3) return evaluate(*e.parts[2], scope);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    case Expression::kAttribute:
      return attribute(evaluate(*e.parts[0], scope), e.text);
    case Expression::kItem: {
      const Value object = evaluate(*e.parts[0], scope);
      if (e.parts[1]->kind == Expression::kSlice) return slice(object, *e.parts[1], scope);
      return item(object, evaluate(*e.parts[1], scope));
    }
    case Expression::kSlice:
      fail("a slice outside of brackets");
    case Expression::kFilter:
      return filter(e.text, evaluate(*e.parts[0], scope), arguments_of(e, scope, 1));
    case Expression::kTest:
      return test(e.text, evaluate(*e.parts[0], scope), arguments_of(e, scope, 1));
    case Expression::kCall:
      return call(evaluate(*e.parts[0], scope), arguments_of(e, scope, 1));
  }
  return {};
}

// The filters of a block, which have its text where an expression has its input.
Value Interpreter::filtered(const Expression* e, Value input, const ScopePtr& scope) {
  if (e == nullptr) return input;
  const Value inner = filtered(e->parts[0].get(), std::move(input), scope);
  return filter(e->text, inner, arguments_of(*e, scope, 1));
}

Value Interpreter::collection(const Expression& e, const ScopePtr& scope) {
  if (e.kind == Expression::kDict) {
    Dict made;
    for (std::size_t k = 0; k + 1 < e.parts.size(); k += 2) {
      const Value key = evaluate(*e.parts[k], scope);
      made.set(key, evaluate(*e.parts[k + 1], scope));
    }
    return made;
  }
  List made;
  made.tuple = e.kind == Expression::kTuple;
  for (const auto& part : e.parts) made.items.push_back(evaluate(*part, scope));
  return made;
}

Arguments Interpreter::arguments_of(const Expression& e, const ScopePtr& scope, std::size_t from) {
  Arguments made;
  for (std::size_t k = from; k < e.parts.size(); ++k)
    made.list.push_back(evaluate(*e.parts[k], scope));
  if (e.more_list) {
    for (Value& value : evaluate(*e.more_list, scope).iterate())
      made.list.push_back(std::move(value));
  }
  for (const auto& [name, value] : e.named) made.named.emplace_back(name, evaluate(*value, scope));
  if (e.more_named) {
    const Value more = evaluate(*e.more_named, scope);
    if (more.dict() == nullptr) fail("argument after ** must be a mapping");
    for (const auto& [key, value] : more.dict()->items) made.named.emplace_back(key.str(), value);
  }
  return made;
}

Value Interpreter::unary(const Expression& e, const ScopePtr& scope) {
  const Value value = evaluate(*e.parts[0], scope);
  if (e.text == "not") return !value.truth();
  if (!value.defined().is_number())
    fail(format("bad operand type for unary {}: '{}'", e.text, value.type()));
  if (const auto* d = value.get<double>()) return e.text == "-" ? -*d : *d;
  return e.text == "-" ? operate("-", std::int64_t{0}, value) : Value(value.integer());
}

Value Interpreter::binary(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.parts[0], scope);
  if (e.text == "and") return left.truth() ? evaluate(*e.parts[1], scope) : left;
  if (e.text == "or") return left.truth() ? left : evaluate(*e.parts[1], scope);
  Value made = operate(e.text, left, evaluate(*e.parts[1], scope));
  if (made.text() != nullptr) spend(made.text()->size() / 64);
  if (made.list() != nullptr) spend(made.list()->items.size());
  return made;
}

Value Interpreter::compare_chain(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.parts[0], scope);
  for (std::size_t k = 0; k < e.operators.size(); ++k) {
    const std::string& op = e.operators[k];
    Value right = evaluate(*e.parts[k + 1], scope);
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else {
      const int order = compare(left, right);
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::slice(const Value& object, const Expression& bounds, const ScopePtr& scope) {
  object.defined();
  if (object.text() == nullptr && object.list() == nullptr)
    return Value::undefined(format("'{}' object cannot be sliced", object.type()));
  const std::vector<Value> items = object.iterate();
  const auto size = static_cast<std::int64_t>(items.size());
  spend(items.size());
  const auto bound = [&](std::size_t part) -> std::optional<std::int64_t> {
    if (!bounds.parts[part]) return std::nullopt;
    const Value v = evaluate(*bounds.parts[part], scope);
    if (v.is<None>()) return std::nullopt;
    if (!v.defined().is_integer()) fail("slice indices must be integers");
    return v.integer();
  };
  const auto first = bound(0), last = bound(1);
  const std::int64_t step = bound(2).value_or(1);
  if (step == 0) fail("slice step cannot be zero");
  const auto clamp = [&](std::int64_t at) {
    if (at < 0) at = std::max(at + size, step > 0 ? std::int64_t{0} : std::int64_t{-1});
    return std::min(at, step > 0 ? size : size - 1);
  };
  const std::int64_t begin = first ? clamp(*first) : step > 0 ? 0 : size - 1;
  const std::int64_t end = last ? clamp(*last) : step > 0 ? size : -1;
  List made;
  std::string text;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    const Value& one = items[static_cast<std::size_t>(at)];
    if (object.text() != nullptr) {
      text += *one.text();
    } else {
      made.items.push_back(one);
    }
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  if (object.text() != nullptr) return text;
  made.tuple = object.list()->tuple;
  return made;
}

namespace {

Value loop_attribute(const Loop& loop, const std::string& name, const std::shared_ptr<Loop>& self) {
  const auto n = static_cast<std::int64_t>(loop.items.size());
  const auto i = static_cast<std::int64_t>(loop.index);
  if (name == "index") return i + 1;
  if (name == "index0") return i;
  if (name == "revindex") return n - i;
  if (name == "revindex0") return n - i - 1;
  if (name == "first") return i == 0;
  if (name == "last") return i + 1 == n;
  if (name == "length") return n;
  if (name == "depth") return std::int64_t{loop.depth} + 1;
  if (name == "depth0") return std::int64_t{loop.depth};
  if (name == "previtem")
    return i > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return i + 1 < n ? loop.items[loop.index + 1] : Value::undefined("there is no next item");
  if (name == "cycle")
    return Value::function("cycle", [self](Interpreter&, const Arguments& a) {
      if (a.list.empty()) fail("no items for cycling given");
      return a.list[self->index % a.list.size()];
    });
  if (name == "changed")
    return Value::function("changed", [self](Interpreter&, const Arguments& a) {
      const bool same = self->changed_before && self->last_changed.size() == a.list.size() &&
                        std::equal(a.list.begin(), a.list.end(), self->last_changed.begin(), equal);
      self->last_changed = a.list;
      self->changed_before = true;
      return Value(!same);
    });
  return Value::undefined(format("'loop' has no attribute '{}'", name));
}

std::string owner(const Value& object) {
  return object.is<None>() ? "'None'" : format("'{} object'", object.type());
}

}  // namespace

Value Interpreter::attribute(const Value& object, const std::string& name) {
  object.defined();
  if (object.space() != nullptr) {
    const Value* found = object.space()->attributes.find_text(name);
    if (found != nullptr) return *found;
  } else if (object.loop()) {
    return loop_attribute(*object.loop(), name, object.loop());
  } else {
    Value method = find_method(object, name);
    if (!method.is<Undefined>()) return method;
    if (object.dict() != nullptr) {
      if (const Value* found = object.dict()->find_text(name)) return *found;
    }
  }
  return Value::undefined(format("{} has no attribute '{}'", owner(object), name));
}

Value Interpreter::item(const Value& object, const Value& index) {
  object.defined();
  if (object.dict() != nullptr) {
    if (const Value* found = object.dict()->find(index)) return *found;
  } else if (index.is_integer() && (object.list() != nullptr || object.text() != nullptr)) {
    const std::vector<Value> characters =
        object.text() != nullptr ? object.iterate() : std::vector<Value>();
    const auto& items = object.text() != nullptr ? characters : object.list()->items;
    spend(characters.size());
    std::int64_t at = index.integer();
    if (at < 0) at += static_cast<std::int64_t>(items.size());
    if (at >= 0 && at < static_cast<std::int64_t>(items.size()))
      return items[static_cast<std::size_t>(at)];
    return Value::undefined(format("{} has no element {}", owner(object), index.integer()));
  }
  if (index.text() != nullptr) return attribute(object, *index.text());
  return Value::undefined(format("{} has no element {}", owner(object), index.repr()));
}

namespace {

std::int64_t checked(bool overflow, const std::int64_t& value) {
  if (overflow) fail("an integer is too large");
  return value;  // by reference, because the operation of the other argument sets it
}

[[noreturn]] void unsupported(const std::string& op, const Value& left, const Value& right) {
  left.defined();
  right.defined();
  if (op == "+" && left.text() != nullptr)
    fail(format("can only concatenate str (not \"{}\") to str", right.type()));
  fail(format("unsupported operand type(s) for {}: '{}' and '{}'", op, left.type(), right.type()));
}

Value integers(const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (op == "+") return checked(__builtin_add_overflow(a, b, &r), r);
  if (op == "-") return checked(__builtin_sub_overflow(a, b, &r), r);
  if (op == "*") return checked(__builtin_mul_overflow(a, b, &r), r);
  if (op == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    r = 1;
    for (std::int64_t k = 0; k < b && r != 0 && !(r == 1 && a == 1); ++k)
      r = checked(__builtin_mul_overflow(r, a, &r) || k > 64 * 1024, r);
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

Value reals(const std::string& op, double a, double b) {
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

Value repeated(const Value& value, std::int64_t times) {
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(0, times));
  const std::size_t size =
      value.text() != nullptr ? value.text()->size() : value.list()->items.size();
  if (size > 0 && n > kMaxText / 64 / size) fail("a repeated value is too long");
  if (value.text() != nullptr) {
    std::string made;
    for (std::size_t k = 0; k < n; ++k) made += *value.text();
    return made;
  }
  List made;
  made.tuple = value.list()->tuple;
  for (std::size_t k = 0; k < n; ++k)
    made.items.insert(made.items.end(), value.list()->items.begin(), value.list()->items.end());
  return made;
}

}  // namespace

Value operate(const std::string& op, const Value& left, const Value& right) {
  if (op == "~") {
    const std::string a = left.str(), b = right.str();
    if (a.size() + b.size() > kMaxText) fail("a text is too long");
    return a + b;
  }
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer())
      return integers(op, left.integer(), right.integer());
    return reals(op, left.number(), right.number());
  }
  if (op == "+" && left.text() != nullptr && right.text() != nullptr) {
    if (left.text()->size() + right.text()->size() > kMaxText) fail("a text is too long");
    return *left.text() + *right.text();
  }
  if (op == "+" && left.list() != nullptr && right.list() != nullptr &&
      left.list()->tuple == right.list()->tuple) {
    List made = *left.list();
    made.items.insert(made.items.end(), right.list()->items.begin(), right.list()->items.end());
    return made;
  }
  const auto repeats = [](const Value& v) { return v.text() != nullptr || v.list() != nullptr; };
  if (op == "*" && repeats(left) && right.is_integer()) return repeated(left, right.integer());
  if (op == "*" && left.is_integer() && repeats(right)) return repeated(right, left.integer());
  unsupported(op, left, right);
}

}  // namespace neap::chat
