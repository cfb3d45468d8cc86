// Evaluates expressions of chat templates.
#include <algorithm>
#include <limits>
#include <optional>

#include "base/format.h"
#include "text/chat/interpreter.h"
#include "text/chat/text.h"

namespace neap::chat {

Value Interpreter::lookup(std::string_view name, const ScopePtr& scope) {
  for (const Scope* s = scope.get(); s != nullptr; s = s->parent.get()) {
    if (const auto it = s->variables.find(name); it != s->variables.end()) return it->second;
  }
  return Value::undefined(format("'{}' is undefined", name), budget_);
}

Value Interpreter::evaluate(const Expression& e, const ScopePtr& scope) {
  budget_.spend(1);
  const Depth depth(*this);
  try {
    return evaluate_kind(e, scope);
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = e.line;
    throw;
  }
}

Value Interpreter::evaluate_kind(const Expression& e, const ScopePtr& scope) {
  switch (e.kind) {
    case Expression::kConstant:
      return e.value;
    case Expression::kLiteral:
      return Text::outside(e.text);
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
          "the inline if-expression evaluated to false and no else section was defined", budget_);
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

// Applies the filters of a block. The block's text is their input.
Value Interpreter::filtered(const Expression* e, Value input, const ScopePtr& scope) {
  if (e == nullptr) return input;
  const Value inner = filtered(e->parts[0].get(), std::move(input), scope);
  return filter(e->text, inner, arguments_of(*e, scope, 1));
}

Value Interpreter::collection(const Expression& e, const ScopePtr& scope) {
  if (e.kind == Expression::kDict) {
    Dict made(budget_);
    for (std::size_t k = 0; k + 1 < e.parts.size(); k += 2) {
      const Value key = evaluate(*e.parts[k], scope);
      made.set(key, evaluate(*e.parts[k + 1], scope));
    }
    return made;
  }
  List made(budget_);
  made.tuple = e.kind == Expression::kTuple;
  for (const auto& part : e.parts) made.items.push_back(evaluate(*part, scope));
  return made;
}

Arguments Interpreter::arguments_of(const Expression& e, const ScopePtr& scope, std::size_t from) {
  Arguments made(budget_);
  for (std::size_t k = from; k < e.parts.size(); ++k)
    made.list.push_back(evaluate(*e.parts[k], scope));
  if (e.more_list) {
    evaluate(*e.more_list, scope).each(budget_, [&](const Value& value) {
      made.list.push_back(value);
    });
  }
  for (const auto& [name, value] : e.named)
    made.named.emplace_back(Text::outside(name), evaluate(*value, scope));
  if (e.more_named) {
    const Value more = evaluate(*e.more_named, scope);
    if (more.dict() == nullptr) fail("argument after ** must be a mapping");
    for (const auto& [key, value] : more.dict()->items)
      made.named.emplace_back(key.str(budget_), value);
  }
  return made;
}

Value Interpreter::unary(const Expression& e, const ScopePtr& scope) {
  const Value value = evaluate(*e.parts[0], scope);
  if (e.text == "not") return !value.truth();
  if (!value.defined().is_number())
    fail(format("bad operand type for unary {}: '{}'", e.text, value.type()));
  if (const auto* d = value.get<double>()) return e.text == "-" ? -*d : *d;
  return e.text == "-" ? operate("-", std::int64_t{0}, value, budget_) : Value(value.integer());
}

Value Interpreter::binary(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.parts[0], scope);
  if (e.text == "and") return left.truth() ? evaluate(*e.parts[1], scope) : left;
  if (e.text == "or") return left.truth() ? left : evaluate(*e.parts[1], scope);
  return operate(e.text, left, evaluate(*e.parts[1], scope), budget_);
}

Value Interpreter::compare_chain(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.parts[0], scope);
  for (std::size_t k = 0; k < e.operators.size(); ++k) {
    const std::string& op = e.operators[k];
    Value right = evaluate(*e.parts[k + 1], scope);
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right, budget_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left, budget_) == (op == "in");
    } else {
      const int order = compare(left, right, budget_);
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

namespace {

// Byte offset of each character, and the end: for slices with a step.
Vector<std::size_t> character_places(std::string_view text, Budget& budget) {
  budget.spend(text.size() / 8);
  Vector<std::size_t> made(budget);
  made.reserve(text.size() + 1);
  for (std::size_t at = 0; at < text.size(); at += character_bytes(text.substr(at)))
    made.push_back(at);
  made.push_back(text.size());
  return made;
}
// Number of bytes of the first `count` characters.
std::size_t bytes_of(std::string_view text, std::int64_t count, Budget& budget) {
  std::size_t at = 0;
  for (; count > 0 && at < text.size(); --count) at += character_bytes(text.substr(at));
  budget.read(at);
  return at;
}

struct SliceBounds {
  std::optional<std::int64_t> first, last;
  std::int64_t step;
};

// Calls `visit` with the index of each item.
template <class Visit>
void slice_items(const SliceBounds& bounds, std::int64_t size, const Visit& visit) {
  const std::int64_t step = bounds.step;
  const auto clamp = [&](std::int64_t at) {
    if (at < 0) at = std::max(at + size, step > 0 ? std::int64_t{0} : std::int64_t{-1});
    return std::min(at, step > 0 ? size : size - 1);
  };
  const std::int64_t begin = bounds.first ? clamp(*bounds.first) : step > 0 ? 0 : size - 1;
  const std::int64_t end = bounds.last ? clamp(*bounds.last) : step > 0 ? size : -1;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    visit(static_cast<std::size_t>(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
}

Value slice_text(const Text& text, const SliceBounds& bounds, Budget& budget) {
  const std::int64_t first = bounds.first.value_or(0);
  const std::int64_t last = bounds.last.value_or(std::numeric_limits<std::int64_t>::max());
  if (bounds.step == 1 && first >= 0 && last >= 0) {
    const std::size_t begin = bytes_of(text, first, budget);
    if (last <= first) return Text();
    return text.part(begin, bytes_of(text.view().substr(begin), last - first, budget));
  }
  const Vector<std::size_t> places = character_places(text, budget);
  const auto size = static_cast<std::int64_t>(places.size()) - 1;
  if (bounds.step == 1) {
    std::size_t begin = 0, end = 0;
    slice_items(bounds, size, [&](std::size_t at) {
      if (end == 0) begin = places[at];
      end = places[at + 1];
    });
    return text.part(begin, end - begin);
  }
  String made(budget);
  slice_items(bounds, size, [&](std::size_t at) {
    made += text.view().substr(places[at], places[at + 1] - places[at]);
  });
  return made;
}

}  // namespace

Value Interpreter::slice(const Value& object, const Expression& bounds, const ScopePtr& scope) {
  object.defined();
  if (object.text() == nullptr && object.list() == nullptr)
    return Value::undefined(format("'{}' object cannot be sliced", object.type()), budget_);
  const auto bound = [&](std::size_t part) -> std::optional<std::int64_t> {
    if (!bounds.parts[part]) return std::nullopt;
    const Value v = evaluate(*bounds.parts[part], scope);
    if (v.is<None>()) return std::nullopt;
    if (!v.defined().is_integer()) fail("slice indices must be integers");
    return v.integer();
  };
  const auto first = bound(0), last = bound(1);
  const SliceBounds slice{first, last, bound(2).value_or(1)};
  if (slice.step == 0) fail("slice step cannot be zero");
  if (object.text() != nullptr) return slice_text(*object.text(), slice, budget_);
  const List& list = *object.list();
  List made(budget_);
  made.tuple = list.tuple;
  slice_items(slice, static_cast<std::int64_t>(list.items.size()),
              [&](std::size_t at) { made.items.push_back(list.items[at]); });
  return made;
}

namespace {

Value loop_cycle(Interpreter&, const Value& self, const Arguments& a) {
  if (a.list.empty()) fail("no items for cycling given");
  return a.list[self.loop()->index % a.list.size()];
}
Value loop_changed(Interpreter& i, const Value& self, const Arguments& a) {
  return i.changed(self.loop(), a);
}

Value loop_attribute(const Value& self, std::string_view name, Budget& budget) {
  const Loop& loop = *self.loop();
  const auto n = static_cast<std::int64_t>(loop.items.size());
  const auto i = static_cast<std::int64_t>(loop.index);
  if (name == "index") return i + 1;
  if (name == "index0") return i;
  if (name == "revindex") return n - i;
  if (name == "revindex0") return n - i - 1;
  if (name == "first") return i == 0;
  if (name == "last") return i + 1 == n;
  if (name == "length") return n;
  if (name == "depth") return std::int64_t{loop.level} + 1;
  if (name == "depth0") return std::int64_t{loop.level};
  if (name == "previtem")
    return i > 0 && i <= n ? loop.items[loop.index - 1]
                           : Value::undefined("there is no previous item", budget);
  if (name == "nextitem")
    return i + 1 < n ? loop.items[loop.index + 1]
                     : Value::undefined("there is no next item", budget);
  if (name == "cycle") return Value::function(loop_cycle, self, budget);
  if (name == "changed") return Value::function(loop_changed, self, budget);
  return Value::undefined(format("'loop' has no attribute '{}'", name), budget);
}

std::string owner(const Value& object) {
  return object.is<None>() ? "'None'" : format("'{} object'", object.type());
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  object.defined();
  if (object.space() != nullptr) {
    const Value* found = object.space()->attributes.find_text(name, budget_);
    if (found != nullptr) return *found;
  } else if (object.loop()) {
    return loop_attribute(object, name, budget_);
  } else {
    Value method = find_method(object, name, budget_);
    if (!method.is<None>()) return method;
    if (object.dict() != nullptr) {
      if (const Value* found = object.dict()->find_text(name, budget_)) return *found;
    }
  }
  return Value::undefined(format("{} has no attribute '{}'", owner(object), name), budget_);
}

Value Interpreter::item(const Value& object, const Value& index) {
  object.defined();
  if (object.dict() != nullptr) {
    if (const Value* found = object.dict()->find(index, budget_)) return *found;
  } else if (index.is_integer() && object.list() != nullptr) {
    const auto& items = object.list()->items;
    std::int64_t at = index.integer();
    if (at < 0) at += static_cast<std::int64_t>(items.size());
    if (at >= 0 && at < static_cast<std::int64_t>(items.size()))
      return items[static_cast<std::size_t>(at)];
  } else if (index.is_integer() && object.text() != nullptr) {
    std::int64_t at = index.integer();
    if (at < 0) at += static_cast<std::int64_t>(characters(*object.text(), budget_));
    const std::size_t begin = bytes_of(*object.text(), at, budget_);
    if (at >= 0 && begin < object.text()->size())
      return object.text()->part(begin, character_bytes(object.text()->view().substr(begin)));
  }
  if (index.text() != nullptr) return attribute(object, *index.text());
  return Value::undefined(format("{} has no element {}", owner(object), index.repr(budget_).view()),
                          budget_);
}

}  // namespace neap::chat
